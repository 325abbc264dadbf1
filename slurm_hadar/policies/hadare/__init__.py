"""HadarE (arXiv 2503.10918): spare nodes train copies."""

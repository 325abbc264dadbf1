"""HadarE (arXiv 2503.10918): free nodes train copies of jobs."""

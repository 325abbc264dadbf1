"""Hadar (arXiv 2503.10918): dual prices, take or skip."""

"""Network-sensitive scheduling (arXiv 2401.16492), its baselines, and functions for other
policies."""

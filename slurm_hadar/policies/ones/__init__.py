"""ONES (arXiv 2108.03645): evolutionary search over GPUs and batch sizes."""

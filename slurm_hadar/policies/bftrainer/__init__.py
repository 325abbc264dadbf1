"""BFTrainer (arXiv 2106.12091): how many idle nodes each training gets."""

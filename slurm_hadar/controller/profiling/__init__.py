"""What jobs and their GPUs tell, into the profiles."""

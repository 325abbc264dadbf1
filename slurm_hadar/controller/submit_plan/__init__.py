"""Where a submit would go: the plan of a job that is not there yet."""

"""Steering jobs that wait: their list of partitions, and their places in the queue."""

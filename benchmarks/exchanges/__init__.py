"""Managed jobs exchange their priorities while people use the same queue."""

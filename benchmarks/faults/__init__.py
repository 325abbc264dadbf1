"""The controller is killed at every point of a tick; what becomes of the jobs is looked at."""

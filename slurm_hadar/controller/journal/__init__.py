"""The controller's own file."""

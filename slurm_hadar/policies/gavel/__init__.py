"""Gavel (OSDI 2020): its linear programmes and its rounds."""

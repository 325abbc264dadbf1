"""Trainings on idle nodes: who gets which, and what is sent for it."""

"""Observe, decide, act: one tick, its journal and its guards."""

"""Synergy: CPUs and memory are assigned by need (Mohan et al., arXiv 2110.06073).

``tune``, ``opt`` and ``proportional`` are policies; ``completion`` serves other policies.
"""

"""Synergy: CPUs and memory beside the GPUs are given by need (Mohan et al., arXiv 2110.06073).

``tune``, ``opt`` and ``proportional`` are policies; ``completing`` serves other policies.
"""

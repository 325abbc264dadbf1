"""The simulator: traces of jobs replayed against the very policies that run live.

``traces`` reads what is to be run into a ``workload``, ``cluster`` says on what;
``engine.simulate`` runs it, or ``queue`` in Slurm's own order; ``outcome`` says how it went.
``tasks`` and ``idle`` are simulations of their own.
"""

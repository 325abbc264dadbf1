"""The simulator: traces of jobs replayed against the very policies that run live.

``workload`` what is to be run, ``cluster`` on what, ``engine.simulate`` runs it, ``outcome`` says
how it went. Readers of the trace formats stand beside.
"""

"""Lists of jobs served in turn: the baselines."""

"""A sandbox under random jobs, cancels, moves and faults; at the end all is accounted for."""

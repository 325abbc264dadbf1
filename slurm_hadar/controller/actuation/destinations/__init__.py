"""Whether a moved job finds its place: what else could use it meanwhile."""

"""``hadar check``: what may be wrong with a site, and the cure."""

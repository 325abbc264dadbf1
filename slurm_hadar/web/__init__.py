"""``hadar web``: a live, read-only page of the cluster, and a JSON API beside it."""

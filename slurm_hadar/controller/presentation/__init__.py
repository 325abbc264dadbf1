"""What is said of a tick, a queue or one job: to people, to the log, by ``hadar doctor``."""

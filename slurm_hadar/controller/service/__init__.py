"""What a running controller tells every user of this host about their own jobs."""

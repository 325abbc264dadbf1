"""How soon the page shows what changed, with many jobs and nodes."""

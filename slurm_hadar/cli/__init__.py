"""hbatch and hadar: arguments in, one call below, text out."""

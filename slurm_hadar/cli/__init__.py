"""hbatch and hadar: words in, one call below, words out."""

"""Bad input for every parser: an answer or one clear error, within time and memory."""

"""Moving jobs that run, and stopping them: from asking for a save to the start elsewhere."""

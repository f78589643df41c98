"""Task: which requests of one engine go into the next batch."""

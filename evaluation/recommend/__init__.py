"""What to set and how many engines to run, for the traffic of a recording."""

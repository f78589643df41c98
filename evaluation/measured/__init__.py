"""Real engines measured end to end, the same requests simulated, and how far apart the two are."""

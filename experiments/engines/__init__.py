"""Real engines: how to install a tested one, and experiments that run policies inside it."""

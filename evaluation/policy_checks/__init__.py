"""Checks of a user's policies on small scenarios, with bounds checks, in a process that may crash."""

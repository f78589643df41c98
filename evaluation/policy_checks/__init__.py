"""Running policies of a user's own on small scenarios, bounds checked, in a process that may crash."""

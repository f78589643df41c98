"""Upper bounds for all schedulers, and for a steady state: docs/bounds.md."""

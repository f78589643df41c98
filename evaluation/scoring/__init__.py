"""One number for a policy: staged, in a process of its own, with feedback (docs/scoring.md)."""

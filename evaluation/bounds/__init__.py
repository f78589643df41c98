"""What no scheduler can exceed, and what a steady state allows: docs/bounds.md."""

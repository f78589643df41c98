"""Scores of policies (docs/scoring.md)."""

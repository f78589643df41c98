"""Policies in order of their scores: an entry each, measured, and a page made of them (docs/leaderboard.md)."""

"""Policies: declarations, their checks, scores, gains. To write one, import servegym.policy."""

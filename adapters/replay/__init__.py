"""Sending a workload to a live endpoint, and judging the tokens that come back."""

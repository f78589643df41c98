"""Sends a workload to a live endpoint and scores the tokens that come back."""

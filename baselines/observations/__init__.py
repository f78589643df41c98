"""Observations of learned policies: compiled functions that environments and policies share."""

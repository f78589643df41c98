"""Scalers: one file a system, each a registered policy."""

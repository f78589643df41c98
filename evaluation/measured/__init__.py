"""Compares real engines, measured end to end, with the same requests simulated."""

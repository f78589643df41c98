"""Recipes of the profiles that ship: from tables of measured operators to latency_models/profiles."""

"""Searching the parameters of policies: spaces, samplers, studies and where they are kept (Optuna)."""

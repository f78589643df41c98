"""Searches the parameters of policies with Optuna: spaces, samplers, studies and their storages."""

"""Hyperparameters of `servegym train`, a file for each environment and algorithm."""

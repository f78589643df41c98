"""A script for each environment: `python -m experiments.environments.engine_batching --help`."""

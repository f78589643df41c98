"""A script for each environment: `python -m servegym.experiments.environments.engine_batching --help`."""

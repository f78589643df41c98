"""Composes profiles of a config.json on a GPU, from operator tables or the data sheet."""

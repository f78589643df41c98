"""Runs and their results: the event loop, its arrays, simulations, tables and figures."""

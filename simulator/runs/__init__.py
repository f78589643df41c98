"""Runs and their results: the event loop, its arrays in Python, simulations, tables and figures."""

"""Routers, a file for each system; each registers its policies."""

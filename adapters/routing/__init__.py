"""Routers of ours before live engines: an HTTP proxy, and a request router of Ray Serve."""

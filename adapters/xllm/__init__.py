"""Translates policies to xLLM's flags and fields of requests."""

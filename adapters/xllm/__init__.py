"""Configurations of xLLM from our policies: flags, and fields of requests."""

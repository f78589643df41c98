"""Policies as a configuration of SGLang: what its scheduler can be told, and priorities of requests."""

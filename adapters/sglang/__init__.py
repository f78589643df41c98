"""Policies for SGLang: a plug-in of its scheduler; or its own options and priorities of requests."""

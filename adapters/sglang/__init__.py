"""Policies in SGLang: in its own scheduler, as a plug-in; or as a configuration, and priorities of requests."""

"""Policies with a network in them: base policies whose decisions it changes, compiled as any other."""

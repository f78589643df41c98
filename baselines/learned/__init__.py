"""Policies with a network: it changes the decisions of a base policy, and is compiled like any other policy."""

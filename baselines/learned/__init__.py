"""Learned policies: a network changes the decisions of a base policy. They are compiled like any other policy."""

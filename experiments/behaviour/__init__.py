"""Fingerprints of what servegym does, to be recorded before a change that is to change nothing, and compared after."""

"""Exports: from what a study, a training or a name gives, to a file for what runs it."""

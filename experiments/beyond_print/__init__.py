"""Policies beyond what the papers print, composed of theirs: judged on training traces, then once on held-out ones."""

"""Trials in numbers: bad commands, random runs, kills. `make hostile` runs them, `make test-all` a few commands."""

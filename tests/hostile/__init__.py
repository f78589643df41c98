"""Trials in numbers: bad commands, random runs, kills. `make hostile` runs all of them, `make test` a few of each."""

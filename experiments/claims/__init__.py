"""What the papers report, as hypotheses that are measured: one file a claim, found by its decorator.

A file states, before anything runs: the paper's claim, the hypothesis with its margins, what would refute it, the
cells to run; then how a setting (a trace family on a device) is judged. To add a claim, add a file like those here.
"""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.experiments.claims: import it under that name")

"""What the papers report, as hypotheses that are measured: one file a claim, found by its decorator.

A Markdown file states, before anything runs: the paper's claim, the hypothesis with its margins, what would refute it.
The Python file of the same name has the cells to run, and how a setting (a trace family on a device) is judged. To add
a claim, add two files like those here.
"""

"""Tasks for program evolution: a folder each, with a program to start from, its evaluator and limits."""

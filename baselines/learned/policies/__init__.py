"""Policies that ship, each named after the training that made it: learned:cma-engine-batching in every command."""

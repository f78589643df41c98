"""Shipped learned policies, named after the training that made them, as in learned:cma-engine-batching."""

"""What is wrong with a search."""

from servegym.simulator.errors import ServegymError


class SearchError(ServegymError):
    """A search space, sampler or pruner that cannot be: an unknown name, a range that is none, what does not go
    together."""

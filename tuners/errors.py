"""What can be wrong with a training or a search, or with where it runs."""

from servegym.simulator.errors import ServegymError


class TrainingError(ServegymError):
    """A training that cannot be: something is wrong in its configuration, or a folder holds none to go on with."""


class ClusterError(ServegymError):
    """A Ray cluster that cannot be reached or used, whose nodes differ from here, or that has lost runs for good."""

"""What can be wrong with a training."""

from servegym.simulator.errors import ServegymError


class TrainingError(ServegymError):
    """A training that cannot be: something is wrong in its configuration, or a folder holds none to go on with."""

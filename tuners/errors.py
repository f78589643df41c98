"""What can be wrong with a training."""

from servegym.simulator.errors import ServegymError


class TrainingError(ServegymError):
    """A training that cannot be: a configuration with something wrong in it, or a folder that holds none to go on with."""

"""What can be wrong with a study."""

from servegym.simulator.errors import ServegymError


class ExperimentError(ServegymError):
    """A study that cannot be run as asked, or results that are not the ones asked for."""

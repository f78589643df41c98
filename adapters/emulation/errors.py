"""What can be wrong with an emulated device."""

from servegym.simulator.errors import ServegymError


class EmulationError(ServegymError):
    """A setting of the emulated device is wrong, or the engine asks for what it cannot do."""

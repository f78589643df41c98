"""What can be wrong with a live router's settings."""

from servegym.simulator.errors import ServegymError


class RoutingError(ServegymError):
    """A router, an engine or an address that requests cannot be routed with."""

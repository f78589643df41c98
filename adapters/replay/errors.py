"""Errors of a replay."""

from servegym.simulator.errors import ServegymError


class ReplayError(ServegymError):
    """An endpoint that cannot be reached or does not serve completions, or a setting that is out of range."""

"""What can be wrong with an environment or an action."""

from servegym.simulator.errors import ServegymError


class EnvError(ServegymError):
    """An environment cannot be made so."""


class ActionError(ServegymError, ValueError):
    """An action has another shape than the action space, or numbers that are not finite."""

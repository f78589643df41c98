"""What can be wrong with the plug-in's settings, artifact or surroundings."""

from servegym.simulator.errors import ServegymError


class VllmError(ServegymError):
    """The plug-in cannot work as it was set up; the message is one line that says what would be right."""

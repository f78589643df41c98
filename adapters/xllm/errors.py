"""What keeps a policy from being a configuration of xLLM."""

from servegym.simulator.errors import ServegymError


class XllmError(ServegymError):
    """A policy xLLM does not have, a version whose flags are not recorded, or a flag or field it does not have."""

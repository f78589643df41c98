"""Errors of a profiler."""

from servegym.simulator.errors import ServegymError


class ProfilingError(ServegymError):
    """An engine, a model, an endpoint or a torch device that cannot be profiled, or a setting that is out of range."""

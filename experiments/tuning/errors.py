"""What is wrong with a tuning."""

from servegym.experiments.errors import ExperimentError


class TuningError(ExperimentError):
    """A tuning that cannot be: a file that does not say what it should, seeds that are not fresh, ..."""

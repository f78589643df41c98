"""Every error a user can cause. Each message says what was wrong, where, and what would be right."""


class ServegymError(ValueError):
    """Base of every error that a wrong input causes; the command line prints it and exits with status 2."""


class WorkloadError(ServegymError):
    """A trace or workload is malformed: columns, lengths, times, SLOs."""


class DeploymentError(ServegymError):
    """A deployment cannot serve the workload: a KV cache smaller than a request, no engines, ..."""


class PolicyError(ServegymError):
    """An unknown policy, or a parameter that is unknown, missing or out of range."""


class ProfileError(ServegymError):
    """A latency profile is unknown or malformed: wrong shape, negative or NaN coefficients."""


class GainError(ServegymError):
    """An unknown gain function, or a parameter of one that is out of range."""


class PredictorError(ServegymError):
    """A predictor's error, latency or batching is out of range, or it cannot predict a workload."""

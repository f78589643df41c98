"""Every error a user can cause. Each message says what was wrong, where, and what would be right."""

import difflib
import re
from collections.abc import Collection

MOST_MEANT = 3  # most names suggested for an unknown one
# Python reads 1_0 as 10. Numbers are words of their own, and parts of NAME:key=1,key=2, LOW..HIGH and KIND:1@2.
UNDERSCORES = re.compile(
    r"(?:^|[:=,@]|\.\.)([-+]?[0-9]*[.]?[0-9]+(?:_[0-9]+)+(?:[.][0-9]*)?(?:e[-+]?[0-9]+)?)(?=$|[:,@]|\.\.)"
)


def unknown_name(kind: str, name: str, names: Collection[str]) -> str:
    """Compose the message for a name that is not among `names`, with those that were probably meant.

    Suggested are, ignoring case, the names that begin with it, or else the most similar one.
    """
    of_lower, lower = {known.lower(): known for known in names}, name.lower()
    longer = [one for one in of_lower if lower and one.startswith(lower)]
    close = longer or difflib.get_close_matches(lower, of_lower, n=1)
    suggestions = " or ".join(f"'{of_lower[one]}'" for one in close[:MOST_MEANT])
    meant = f" (did you mean {suggestions}?)" if suggestions else ""
    return f"unknown {kind} '{name}'{meant}; there are: {', '.join(names) or 'none'}"


def why_unread(error: Exception) -> str:
    """Return on one line why a file could not be read, without its name."""
    return getattr(error, "strerror", None) or str(error).partition("\n")[0]


def without_underscores(text: str) -> str:
    """Compose the message for a text that has a number with underscores; "": it has none."""
    found = UNDERSCORES.search(text)
    return f"{text}: it should be {found[1].replace('_', '')}, without underscores" if found else ""


class ServegymError(ValueError):
    """Base of every error that a wrong input causes; the command line prints it and exits with status 2."""


class WorkloadError(ServegymError):
    """A trace or workload is malformed: columns, lengths, times, SLOs."""


class DeploymentError(ServegymError):
    """A deployment cannot serve the workload: a KV cache smaller than a request, no engines, ..."""


class PolicyError(ServegymError):
    """An unknown policy, or a parameter that is unknown, missing or out of range."""


class StalledError(PolicyError):
    """Policies have brought a run to a standstill: requests wait for ever, or are evicted for each other."""


class ProfileError(ServegymError):
    """A latency profile is unknown or malformed: wrong shape, negative or NaN coefficients."""


class GainError(ServegymError):
    """An unknown gain function, or a parameter of one that is out of range."""


class PredictorError(ServegymError):
    """A predictor's error, latency or batching is out of range, or it cannot predict a workload."""


class SpecError(ServegymError):
    """An invalid `ServingSpec`: an unknown word, a value out of range, incompatible fields."""


class EnvError(ServegymError):
    """An environment cannot be made with these arguments."""


class ActionError(ServegymError, ValueError):
    """An action has another shape than the action space, or numbers that are not finite."""


class ExperimentError(ServegymError):
    """A study that cannot be run as asked, or results that are not the ones asked for."""


class ExportError(ExperimentError):
    """A source that nothing can be exported from, or a target that does not take it."""


class TrainingError(ServegymError):
    """An invalid training: an error in its configuration, or a folder without a training to resume."""


class ClusterError(ServegymError):
    """A Ray cluster that cannot be reached or used, whose nodes differ from here, or that has lost runs for good."""


class SearchError(ServegymError):
    """An invalid search space, sampler or pruner: an unknown name, an empty range, incompatible choices."""


class StorageError(SearchError):
    """A database that does not answer, a damaged journal, or an unknown storage."""


class ForeignStudyError(StorageError):
    """The study of this name is a different one, or not one of servegym's."""


class WorkError(SearchError):
    """A trial that cannot be finished: its objective is not a number, or it kills its workers."""


class TuningError(ExperimentError):
    """An invalid tuning: a malformed file, seeds that are not fresh, ..."""


class VllmError(ServegymError):
    """The plug-in cannot work as it was set up; the message is one line that says what would be right."""


class EmulationError(ServegymError):
    """A setting of the emulated device is wrong, or the engine asks for something unsupported."""


class RoutingError(ServegymError):
    """A router, an engine or an address that requests cannot be routed with."""


class XllmError(ServegymError):
    """A policy xLLM does not have, a version whose flags are not recorded, or a flag or field it does not have."""


class ProfilingError(ServegymError):
    """An engine, a model, an endpoint or a torch device that cannot be profiled, or a setting that is out of range."""


class ReplayError(ServegymError):
    """An endpoint that cannot be reached or does not serve completions, or a setting that is out of range."""

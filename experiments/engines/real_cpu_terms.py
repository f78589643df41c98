"""What vLLM's server adds to the steps of its engine: three terms, fitted to requests that nobody is judged by.

The front end and the client take turns with the engine on the cores there are, and its threads wait for each other's
interpreter lock. No batch measured in process has that in it.
"""

from collections.abc import Sequence
from pathlib import Path

from servegym.adapters.replay.measuring import Measured
from servegym.evaluation.measured.fitting import Fitted, fit
from servegym.evaluation.measured.runs import Run, read_own
from servegym.evaluation.shadow import NOTHING_BESIDE
from servegym.latency_models.profile import Profile

LOADS = (0.65, 0.95)  # at which other requests are served first, each with a seed of its own


def run_of(measured: Measured, table: Path, sequences: int, batch_tokens: int) -> Run:
    """A replay as a measured run; its requests are kept in `table`."""
    measured.requests.to_csv(table, index=False)
    return read_own(table, sequences, batch_tokens)


def with_server(profile: Profile, runs: Sequence[Run]) -> tuple[Fitted, Profile]:
    """The terms with which the profile comes nearest to these runs, and the profile with them."""
    terms = fit([(run, profile, NOTHING_BESIDE) for run in runs])
    return terms, terms.within(profile)

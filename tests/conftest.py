"""For all tests: how Hypothesis draws, what Ctrl-C does, how long `make test` may take.

Hypothesis has no deadlines (a first use of a kernel compiles it), and in CI no random seed. The examples of CI are
still not the same for ever: some numbers are drawn from the constants in the modules that a process has imported, so
they depend on the code, and on which tests ran in it before.
"""

import os
import signal
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

COMMON = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("servegym", COMMON)
settings.register_profile("servegym-ci", COMMON, derandomize=True, print_blob=True)
settings.load_profile("servegym-ci" if os.environ.get("CI") else "servegym")

# A job that a shell has put into the background begins with Ctrl-C ignored, and so would what tests start and
# interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FAST = "not slow"  # what `make test` selects
MOST_MINUTES = 6  # of all of these, on two cores
MOST_COMPILING_MINUTES = 9  # in an empty environment, with an empty kernel cache
BEGAN_S = time.monotonic()


def is_make_test(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == FAST and config.args == config.getini("testpaths"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers of `make test` begin with the kernels that most tests need."""
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is not None and is_make_test(session.config):
        from tests import compiling

        compiling.compile_share(worker["testrunuid"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is not None and is_make_test(session.config):
        from tests import compiling

        compiling.forget(worker["testrunuid"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The minutes of `make test`, with a warning where they are too many. Never a failure: machines differ."""
    if is_make_test(config):
        minutes = (time.monotonic() - BEGAN_S) / 60
        most = f"at most {MOST_MINUTES} on two cores, {MOST_COMPILING_MINUTES} where kernels have to be compiled"
        terminalreporter.write_line(f"{minutes:.1f} minutes; {most}")
        if minutes > MOST_MINUTES:
            terminalreporter.write_line(
                "WARNING: with kernels compiled that is too long: see --durations=30", yellow=True
            )

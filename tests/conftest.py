"""Hypothesis for all tests: no deadlines (a first use of a kernel compiles it); in CI no random seed.

The examples of CI are still not the same for ever: Hypothesis draws some numbers from the constants in the modules that
a process has imported, so they depend on the code, and on which tests ran in it before.
"""

import os
import signal

from hypothesis import HealthCheck, settings

COMMON = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("servegym", COMMON)
settings.register_profile("servegym-ci", COMMON, derandomize=True, print_blob=True)
settings.load_profile("servegym-ci" if os.environ.get("CI") else "servegym")

# A job that a shell has put into the background begins with Ctrl-C ignored, and so would what tests start and
# interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""Options of schedulers with a time budget: where deadlines count from, and whether batches end at device steps."""

import numpy as np

from servegym.policy import ByWord, Fact, Parameter, kernel, next_deadline_s

DEADLINES = ("slo", "early-first-token", "first-token")
FROM_SLO, FROM_EARLY_FIRST_TOKEN, FROM_FIRST_TOKEN = range(3)
WHERE = ("ignore", "device")


@kernel
def counted_deadline_s(request, counted):
    """Return the deadline of the next token, where later deadlines may count from the first token, in s of the run.

    counted: an index into DEADLINES. While the first token is under way (asynchronous scheduling) they count from the
    TTFT SLO. A request with a TTLT SLO has one deadline for all its tokens.
    """
    if counted == FROM_SLO or request.num_output_tokens == 0 or request.ttlt_slo_s < np.inf:
        return next_deadline_s(request)
    base_s, first_s = request.first_deadline_s, request.first_token_s  # nan before the first token
    if first_s < base_s or (counted == FROM_FIRST_TOKEN and not np.isnan(first_s)):
        base_s = first_s
    return base_s + request.num_output_tokens * request.token_interval_s


def steps(default: str | ByWord = "device") -> tuple[Parameter, Parameter]:
    """Return the parameter `steps` with this default, and `step_tokens`, which follows from it."""
    return (
        Parameter("steps", default, "device: a batch may end at a multiple of the device's step, where time per token "
                  "is least; ignore: it takes all that fits its time budget", choices=WHERE),
        Parameter("step_tokens", ByWord("steps", {"ignore": 0, "device": Fact("step_tokens")}),
                  "the step: a batch takes as long as one with the next multiple of this many tokens; 0: no steps",
                  0, 2**14, "tokens", integer=True),
    )  # fmt: skip

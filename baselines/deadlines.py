"""What a scheduler counts the deadlines of later tokens from, for itself alone."""

import numpy as np

from servegym.simulator.compilation import kernel
from servegym.simulator.requests import next_deadline_s

DEADLINES = ("slo", "early-first-token", "first-token")
FROM_SLO, FROM_EARLY_FIRST_TOKEN, FROM_FIRST_TOKEN = range(3)


@kernel
def counted_deadline_s(request, counted):
    """Deadline of the next token, where the later ones may count from the first token. While that is under way (an
    engine that runs ahead of its tokens) from the TTFT SLO; a TTLT is one deadline for all."""
    if counted == FROM_SLO or request.num_output_tokens == 0 or request.ttlt_slo_s < np.inf:
        return next_deadline_s(request)
    base_s, first_s = request.first_deadline_s, request.first_token_s  # nan before the first token
    if first_s < base_s or (counted == FROM_FIRST_TOKEN and not np.isnan(first_s)):
        base_s = first_s
    return base_s + request.num_output_tokens * request.token_interval_s

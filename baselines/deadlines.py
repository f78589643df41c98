"""The start from which a scheduler counts the deadlines of later tokens; it affects that scheduler alone."""

import numpy as np

from servegym.policy import kernel, next_deadline_s

DEADLINES = ("slo", "early-first-token", "first-token")
FROM_SLO, FROM_EARLY_FIRST_TOKEN, FROM_FIRST_TOKEN = range(3)


@kernel
def counted_deadline_s(request, counted):
    """Deadline of the next token, where later deadlines may count from the first token.

    While the first token is still under way (asynchronous scheduling) they count from the TTFT SLO. A request with a
    TTLT SLO has one deadline for all its tokens.
    """
    if counted == FROM_SLO or request.num_output_tokens == 0 or request.ttlt_slo_s < np.inf:
        return next_deadline_s(request)
    base_s, first_s = request.first_deadline_s, request.first_token_s  # nan before the first token
    if first_s < base_s or (counted == FROM_FIRST_TOKEN and not np.isnan(first_s)):
        base_s = first_s
    return base_s + request.num_output_tokens * request.token_interval_s

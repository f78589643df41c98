"""Which requests of an engine go into its next batch? The lowest key goes first; what fits is taken."""

from servegym.policy import Policy, is_decoding, next_deadline_s, register, score

LIMITS = {"max_num_batched_tokens": 512}


# EVOLVE-BLOCK-START
@score(limits=LIMITS)
def evolved(request, engine, now_s, estimates, p):
    """request: what a scheduler knows of it; estimates.exec_s: seconds of work before its next token."""
    slack_s = next_deadline_s(request) - now_s - estimates.exec_s
    decoding = 1.0 if is_decoding(request) else 0.0
    key = slack_s - 0.1 * decoding
    return key


# EVOLVE-BLOCK-END

register(Policy("evolved", "scheduler", "Least time to spare first.", "a start for evolution", evolved))

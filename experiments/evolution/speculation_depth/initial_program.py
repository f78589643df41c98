"""How many tokens are drafted of a decode? Each is verified with the batch, and costs time there if it is rejected."""

from servegym.policy import Policy, is_decoding, register, scheduler


# EVOLVE-BLOCK-START
@scheduler
def evolved(context, ranks, limits):
    """engine.speculation.k: the most that may be drafted; engine.totals: drafted_tokens and accepted_tokens so far."""
    requests, queue, engine = context.requests, context.queue, context.engine
    for position in range(queue.shape[0]):
        request = requests[queue[position]]
        ranks[position].tier, ranks[position].key = not is_decoding(request), request.arrival_s
    limits.max_num_batched_tokens = 512
    limits.most_drafts = min(4, engine.speculation.k)


# EVOLVE-BLOCK-END

register(Policy("evolved", "scheduler", "First come, first served, four drafts.", "a start for evolution", evolved))

"""Which requests does an overloaded engine leave out? The others run by deadline, the most important first."""

from servegym.policy import LEAVE_OUT, Policy, next_deadline_s, register, scheduler


# EVOLVE-BLOCK-START
@scheduler
def evolved(context, ranks, limits):
    """What is left out now may be taken later: it stays in the queue, and is asked about again."""
    requests, queue, estimator, now_s = context.requests, context.queue, context.estimator, context.now_s
    limits.max_num_batched_tokens = 512
    estimator.exec_s(requests, queue, estimator.coefficients, ranks)  # writes ranks[i].exec_s
    for position in range(queue.shape[0]):
        request, rank = requests[queue[position]], ranks[position]
        slack_s = next_deadline_s(request) - now_s - rank.exec_s
        rank.tier, rank.key = 0, slack_s
        if slack_s < -60.0 and request.num_output_tokens == 0 and position > 0:
            rank.tier = LEAVE_OUT


# EVOLVE-BLOCK-END

register(Policy("evolved", "scheduler", "By slack, the late ones left out.", "a start for evolution", evolved))

"""Schedulers: a file a system, each a registered policy. Long queues are ranked in blocks: a branch-free pass writes
the positions that matter, and only those are ranked."""

from servegym.policy import kernel

AT_A_TIME = 64  # positions


@kernel
def write_all(some, n):
    """Write positions 0 to n - 1: a queue this short is ranked without a filter. Returns n."""
    for position in range(n):
        some[position] = position
    return n

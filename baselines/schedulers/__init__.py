"""Schedulers, a file for each system; each registers its policies.

Some rank long queues in blocks: a branch-free pass writes the positions that matter, and only those are ranked.
"""

from servegym.policy import kernel

AT_A_TIME = 64  # positions in a block


@kernel
def write_all(some, n):
    """Write positions 0 to n - 1, for a queue that is too short for a filter, and return n."""
    for position in range(n):
        some[position] = position
    return n

"""Refusals in sessions: a session ends at the turn that the router refuses.

The client has no answer to go on from. So each turn that follows the refused one, directly or indirectly, counts as
refused at the same instant.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features.front import arrive_at_front
from servegym.simulator.features.session_dependencies import NO_TURN
from servegym.simulator.records.requests import count_refused


@kernel
def refuse_followers(run, following, r):
    """Count all requests that follow request r, directly or indirectly, as refused now."""
    at, session = following[r].first, following[following[r].session]
    following[r].first = NO_TURN
    last = last_of_chain(following, at)
    while at != NO_TURN:  # append the requests that follow it to the chain of those to refuse
        arrive_at_front(run, at)
        count_refused(run, at)
        session.unfinished -= 1
        following[last].next = following[at].first
        last = last_of_chain(following, last)
        at = following[at].next


@kernel
def last_of_chain(following, at):
    """Return the last request of the chain of FOLLOWING.next that begins at `at`."""
    while at != NO_TURN and following[at].next != NO_TURN:
        at = following[at].next
    return at

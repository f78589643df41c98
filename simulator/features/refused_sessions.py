"""Sessions of which the router refuses a turn: they end there.

Its client has no answer to go on from. So each turn that follows the refused one, directly or by way of others, counts
as refused at the same instant: who refuses a turn answers for all that would have come after it.
"""

from servegym.simulator.compilation.kernels import kernel
from servegym.simulator.features.front import appear
from servegym.simulator.features.session_dependencies import NO_TURN
from servegym.simulator.records.requests import count_refused


@kernel
def refuse_followers(run, following, r):
    """All that follow request r will not be sent: they count as refused now."""
    at, session = following[r].first, following[following[r].session]
    following[r].first = NO_TURN
    last = last_of_chain(following, at)
    while at != NO_TURN:  # what follows it is put behind the last of those that are to be refused
        appear(run, at)
        count_refused(run, at)
        session.unfinished -= 1
        following[last].next = following[at].first
        last = last_of_chain(following, last)
        at = following[at].next


@kernel
def last_of_chain(following, at):
    """The last of the requests that are linked by FOLLOWING.next, from `at` on."""
    while at != NO_TURN and following[at].next != NO_TURN:
        at = following[at].next
    return at

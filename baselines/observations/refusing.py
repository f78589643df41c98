"""The slot of refusing in an observation of a request and the engines it could be sent to: the last one.

Its numbers are 0, but for those of the base router's choice. A network that scores slots so scores refusing too.
"""

from servegym.baselines.observations.caching import BASE_GAP
from servegym.baselines.observations.routing import CHOSEN, SLOT
from servegym.policy import REFUSE, kernel


@kernel
def write_refusing(chosen, whole, slot, place, out):
    """Write the slot of refusing behind the others, which are written: `chosen`, and `base_gap` where slots have it.

    chosen: what the base router named; REFUSE: it refuses the request. whole, slot: numbers of the request, and of a
    slot. place: index of this slot.
    """
    at = whole + place * slot
    out[at + CHOSEN] = chosen == REFUSE
    if slot > SLOT:
        out[at + BASE_GAP] = 0.0 if chosen == REFUSE else 1.0

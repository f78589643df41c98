"""What routers do where engines are alike: the one that was sent a request longest ago, then the lower index."""

from servegym.simulator.compilation import kernel
from servegym.simulator.policies import StateFields

LAST_SENT = StateFields(engine=("last_sent",))  # number of the last request sent there, from 1; 0: none


@kernel
def goes_first(views, state, a, b):
    """Whether engine a goes before engine b."""
    if state[a, 0] != state[b, 0]:
        return state[a, 0] < state[b, 0]
    return views[a].index < views[b].index


@kernel
def send_to(e, r, state, route):
    """Name engine e, and note it."""
    state[e, 0] = r + 1.0
    route.engine = e

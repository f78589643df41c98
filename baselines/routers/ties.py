"""What routers do where engines are alike: the one that was sent a request longest ago, then the lower index."""

from servegym.simulator.compilation import kernel
from servegym.simulator.policies import StateFields

# last_sent: number of the last sending there, counted over the run from 1; 0: none. sent: at engine 0, all sendings.
LAST_SENT = StateFields(engine=("last_sent", "sent"))


@kernel
def goes_first(views, state, a, b):
    """Whether engine a goes before engine b."""
    if state[a, 0] != state[b, 0]:
        return state[a, 0] < state[b, 0]
    return views[a].index < views[b].index


@kernel
def send_to(e, state, route):
    """Name engine e, and note it."""
    state[0, 1] += 1.0
    state[e, 0] = state[0, 1]
    route.engine = e

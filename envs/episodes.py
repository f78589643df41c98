"""Episodes: what the kernel that steps them keeps of each, and the signatures of what an environment plugs into it.

observe   writes what the agent sees at a decision, and what the base would do; says whether it is the agent's at all
act       turns the agent's action into what the loop is to do at that decision
"""

import numba
from numba import types

from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.records.signatures import NUMBERS, array
from servegym.simulator.records.types import record

EPISODE = record(
    [
        ("address", "i8"),  # of the parked run
        ("stop_at", "i8"),  # AT_BATCHES, AT_ROUTES, AT_CHECKS
        ("until_s", "f8"),
        ("ideal_gain", "f8"),  # of the requests that arrive
        ("every", "i8"),  # decisions that an action is for
        ("controls", "i8"),  # parameters an action sets
        ("slots", "i8"),  # of an observation
        ("kinds", "i8"),  # bit k: batches of engines of kind k are the agent's
        ("offset", "i8"),  # place of the first score among an engine's numbers; of what the base router compares
        ("counts_cached", "i8"),  # 1: the observation of a route is that of observations/caching.py
        ("shows_sessions", "i8"),  # 1: the observation has the numbers of observations/sessions.py too
        ("refuses", "i8"),  # 1: the action after the last engine refuses the request
        ("discount", "f8"),  # of shaping
        ("shaping", "f8"),  # weight of the potential; 0: none
        # What changes from step to step.
        ("stepping", "i8"),  # 1: this episode is to be stepped
        ("left", "i8"),  # decisions until the next that the agent is asked for
        ("status", "i8"),  # of `advance`
        ("filled", "i8"),  # slots with something in them
        ("rewarded", "f8"),  # how much of the gain has been in a reward
        ("potential", "f8"),  # at the last decision
        ("steps", "i8"),
        ("now_s", "f8"),  # from here on: SHOWN
        ("gain", "f8"),  # up to the last decision
        ("tdg_ratio", "f8"),  # that over the ideal gain
        ("gain_reward", "f8"),  # terms of the step's reward
        ("shaping_reward", "f8"),
        ("reward", "f8"),  # their sum
    ]
)
# What a step says of each episode, all float64: the last fields, so that they can be copied at once.
SHOWN = ("now_s", "gain", "tdg_ratio", "gain_reward", "shaping_reward", "reward")
EPISODE_TYPE = numba.from_dtype(EPISODE)
OBSERVATION, MASK, ACTION = array(types.float32), array(types.int8), NUMBERS


@kernel
def is_agents(episode, engine):
    """Whether the agent decides the batches of an engine: one whose pool has no scheduler of its own."""
    return (episode.kinds >> engine.pool) & 1 == 1


observe_signature = types.boolean(EPISODE_TYPE, OBSERVATION, MASK, ACTION)
# (episode, float32[size], int8[choices] and float64[numbers of an action], to be written) -> whether the agent decides.
# The last is the action with which the base policy's own decision stands.
act_signature = types.void(EPISODE_TYPE, ACTION)
# (episode, float64[numbers of an action]); both get the run from `restore_run(episode.address)`

observe = compiled(observe_signature)
act = compiled(act_signature)

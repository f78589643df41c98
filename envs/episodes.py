"""The record of an episode in the kernel that steps episodes, and the signatures of an environment's two kernels.

observe   writes observation, mask and base action at a decision; returns whether the agent is asked
act       applies the agent's action to the decision at which the loop stopped
"""

from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import compiled, kernel
from servegym.simulator.records.signatures import NUMBERS, array
from servegym.simulator.records.types import record

EPISODE = record(
    [
        ("address", "i8"),  # of the parked run
        ("stop_at", "i8"),  # AT_BATCHES, AT_ROUTES, AT_CHECKS
        ("until_s", "f8"),
        ("ideal_gain", "f8"),  # of the requests that arrive
        ("every", "i8"),  # decisions for which one action holds
        ("controls", "i8"),  # parameters that an action sets
        ("slots", "i8"),  # of an observation
        ("agent_pools", "i8"),  # bit k: the agent decides the batches of the engines of pool k
        ("offset", "i8"),  # a place in a policy's numbers, or a number of engines: `begin` of the environment sets it
        ("counts_cached", "i8"),  # 1: the observation of a route is that of observations/caching.py
        ("shows_sessions", "i8"),  # 1: the observation includes the numbers of observations/sessions.py
        ("refuses", "i8"),  # 1: the last slot, and its action, is that of refusing the request
        ("of_whole", "i8"),  # numbers of the observation outside of slots, and of a slot
        ("of_slot", "i8"),
        ("discount", "f8"),  # of shaping
        ("shaping", "f8"),  # weight of the potential; 0: none
        # The fields below change from step to step.
        ("stepping", "i8"),  # 1: a call of the kernel steps this episode
        ("left", "i8"),  # decisions until the agent is asked again
        ("status", "i8"),  # of `advance`
        ("filled", "i8"),  # slots that hold a request
        ("rewarded", "f8"),  # the part of the gain that rewards have included
        ("potential", "f8"),  # at the last decision
        ("steps", "i8"),
        ("now_s", "f8"),  # from here on: SHOWN
        ("gain", "f8"),  # up to the last decision
        ("tdg_ratio", "f8"),  # gain / ideal_gain
        ("gain_reward", "f8"),  # terms of the step's reward
        ("shaping_reward", "f8"),
        ("reward", "f8"),  # gain_reward + shaping_reward
    ]
)
# Fields that a step returns for each episode. They are the last of the record and float64, so that one copy takes all.
SHOWN = ("now_s", "gain", "tdg_ratio", "gain_reward", "shaping_reward", "reward")
EPISODE_TYPE = types.from_dtype(EPISODE)
OBSERVATION, MASK, ACTION = array(types.float32), array(types.int8), NUMBERS


@kernel
def is_agents(episode, engine):
    """Whether the agent decides the batches of an engine: those of pools without a scheduler of their own."""
    return (episode.agent_pools >> engine.pool) & 1 == 1


observe_signature = types.boolean(EPISODE_TYPE, OBSERVATION, MASK, ACTION)
# (episode, observation float32[size], mask int8[choices], base float64[numbers of an action]) -> whether the agent is
# asked. The kernel writes all three arrays; base is the action that leaves the base policy's decision as it is.
act_signature = types.void(EPISODE_TYPE, ACTION)
# (episode, float64[numbers of an action]). Both kernels get the run from `restore_run(episode.address)`.

observe = compiled(observe_signature)
act = compiled(act_signature)

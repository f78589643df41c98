"""The compiled call that steps any number of episodes, each to its agent's next decision or to its end."""

from typing import Any, NamedTuple

import numpy as np

from servegym.envs.episodes import EPISODE, act_signature, observe_signature
from servegym.envs.rings import ACTING, NO_MORE, before_first, next_episode
from servegym.simulator.compilation import numba_types as types
from servegym.simulator.compilation.kernels import Compiled, compiled, kernel
from servegym.simulator.compilation.parked import parking
from servegym.simulator.records.requests import next_deadline_s
from servegym.simulator.records.signatures import array
from servegym.simulator.records.state import advance_signature
from servegym.simulator.records.statuses import DECISION, DONE, PAUSED
from servegym.simulator.runs.loops import LOOPS
from servegym.simulator.runs.parking import restore_run


class Handling(NamedTuple):
    """The compiled functions of an environment."""

    advance: Any  # advance_signature
    observe: Any  # observe_signature
    act: Any  # act_signature


HANDLERS = types.NamedTuple(
    (types.FunctionType(advance_signature), types.FunctionType(observe_signature), types.FunctionType(act_signature)),
    Handling,
)
store_handlers, restore_handlers, size_of_handlers = parking(HANDLERS)


@compiled(types.int64())
def handlers_bytes():
    return size_of_handlers()


@compiled(types.void(types.int64, *HANDLERS.types))
def park_handlers(address, advance, observe, act):
    store_handlers(address, Handling(advance, observe, act))


@compiled(
    types.int64(
        types.int64,
        array(EPISODE),
        array(types.int64),
        types.boolean,
        array(types.float64, 2),
        array(types.float32, 2),
        array(types.int8, 2),
        array(types.float64, 2),
    )
)
def step_episodes(handlers, episodes, ring, downwards, actions, observations, masks, bases):
    """Step the episodes of a ring that have `stepping` set; returns how many stopped elsewhere than at a decision.

    handlers: address of a parked `Handling`. ring: int64[RING_NUMBERS] (rings.py), which two threads can step from both
    ends. actions: float64[n, numbers], all in the action space. At a decision these are written: observations,
    float32[n, size]; masks, int8[n, choices]; bases, float64[n, numbers], the base policy's actions.
    """
    run_on, observe, act = restore_handlers(handlers)
    stopped, row = 0, before_first(ring, downwards)
    while True:
        row = next_episode(ring, row, downwards)
        if row == NO_MORE:
            return stopped
        episode = episodes[row]
        if episode.stepping == 0:
            continue
        run, _, _ = restore_run(episode.address)
        if ring[ACTING] == 1:
            if episode.status == DECISION:  # an episode without decisions has a step too
                act(episode, actions[row])
            episode.left = episode.every
        status = DECISION
        while status == DECISION:
            status = run_on(episode.address, episode.stop_at, episode.until_s)
            if status == DECISION:
                episode.left -= 1
                if episode.left <= 0 and observe(episode, observations[row], masks[row], bases[row]):
                    break
        episode.status = status
        if status in (DECISION, DONE, PAUSED):
            write_rewards(run, episode)
        stopped += status != DECISION


@compiled(types.boolean(array(types.float64, 2), array(types.float64, 2)))
def within_bounds(bounds, actions):
    """Whether all actions are within float64[numbers, 3]: lower bound, upper bound, and 1 for integers."""
    for row in range(actions.shape[0]):
        for column in range(actions.shape[1]):
            number = actions[row, column]
            if not (np.isfinite(number) and bounds[column, 0] <= number <= bounds[column, 1]):
                return False
            if bounds[column, 2] == 1.0 and number != np.floor(number):
                return False
    return True


@kernel
def write_rewards(run, episode):
    """Write the terms of the reward of the step that has ended, and the figures SHOWN."""
    gain = run.status[0].gain
    episode.gain_reward = (gain - episode.rewarded) / episode.ideal_gain
    episode.gain = episode.rewarded = gain
    episode.tdg_ratio = gain / episode.ideal_gain
    episode.now_s = run.status[0].now_s
    episode.steps += 1
    if episode.shaping > 0.0:
        after = potential(run, episode) if episode.status == DECISION else 0.0
        episode.shaping_reward = episode.discount * after - episode.potential
        episode.potential = after
    episode.reward = episode.gain_reward + episode.shaping_reward


@kernel
def potential(run, episode):
    """`shaping` times the gain of the next tokens of queued requests that are not late, divided by the ideal gain."""
    now_s, total = run.status[0].now_s, 0.0
    for e in range(run.engines.shape[0]):
        for place in range(run.engines[e].queue_length):
            request = run.requests[run.queues[e, place]]
            if now_s < next_deadline_s(request):
                total += request.first_token_gain if request.num_output_tokens == 0 else request.decode_token_gain
    return episode.shaping * total / episode.ideal_gain


class Handlers:
    """The compiled functions of an environment, stored for kernels at `address`."""

    def __init__(self, observe: Compiled, act: Compiled):
        self._observe, self._act = observe, act
        self._bytes = np.zeros(handlers_bytes.entry() + 64, "u1")
        self.address = self._bytes.ctypes.data + -self._bytes.ctypes.data % 64
        self._loops = 0  # 1 + index in LOOPS of the parked loop; 0: none is parked

    def provide(self, loop: Compiled) -> None:
        """Park `loop` unless the parked one has more features; one loop steps all episodes of a batch."""
        if self._loops <= LOOPS.index(loop):
            self._loops = LOOPS.index(loop) + 1
            self._functions = (loop.value, self._observe.value, self._act.value)  # referenced, as addresses are parked
            park_handlers.entry(self.address, *self._functions)

"""TierScaling-v0: at each check of the scaler an agent moves engines between tiers, closes and opens them, and may
change their roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from servegym.baselines.learned.scaling import (
    LAYOUTS,
    NOW,
    OBSERVERS,
    ROLES,
    choice_of,
    choices_of,
    give_choice,
    role_of,
    roles_of,
    wanted_of,
)
from servegym.envs.env import ServingEnv, Source
from servegym.envs.episodes import act, observe
from servegym.envs.interface import Interface
from servegym.envs.rendering.words import tier_names
from servegym.envs.vector import ServingVectorEnv
from servegym.errors import EnvError
from servegym.scenarios.presets import EPISODES, PRESETS
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.compilation.kernels import kernel, specialised
from servegym.simulator.fleet.scaling import scaler_context_of
from servegym.simulator.inputs.cluster import cluster_of
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import AT_CHECKS
from servegym.simulator.records.types import TIERS
from servegym.simulator.runs.parking import restore_run
from servegym.simulator.runs.simulation import Simulation

DEFAULTS: dict[str, Any] = {"engines": 4, "tiers": 4, "sees": NOW}

write_observation = OBSERVERS[NOW]  # placeholder: or another of `OBSERVERS`
HAS_ROLES = False  # placeholder: whether the choices of an engine include its role


@kernel
def places_of(router_state):
    """Return how many choices of a tier or the pool, open or closed, an engine has: 2 (tiers + 1)."""
    return 2 * (router_state.known.tiers.shape[0] - 1)  # known.tiers has two rows that are no tiers


@observe
def show_cluster(episode, observation, mask, base):
    """Write the cluster at a check, and the base scaler's decisions: a template."""
    run, router_state, _ = restore_run(episode.address)
    context = scaler_context_of(run, router_state, run.status[0].now_s)
    write_observation(context, router_state.moves, episode.offset, episode.slots, observation)
    for e in range(base.shape[0]):
        base[e] = choice_of(router_state.moves[e])
        if HAS_ROLES:
            base[e] += role_of(router_state.moves[e]) * places_of(router_state)
    return True


@act
def move_engines(episode, action):
    """Set tier, closing and role of each engine from its number: a template.

    Out of range, the base scaler's decision stands.
    """
    _, router_state, _ = restore_run(episode.address)
    places = places_of(router_state)
    choices = 2 * places if HAS_ROLES else places
    for e in range(episode.slots):
        choice, move = int(action[e]), router_state.moves[e]
        of_base = choice_of(move) + (role_of(move) * places if HAS_ROLES else 0)
        if 0 <= choice < choices and choice != of_base:
            give_choice(router_state.moves, e, router_state.known.snapshots[e], choice, places, HAS_ROLES)


class TierScaling(Interface):
    """The decision at a check: the tier of each engine, whether it is closed and, if `sees` is ROLES, its role."""

    stop_at = AT_CHECKS

    def __init__(self, engines: int, tiers: int, sees: str = NOW):
        if not (isinstance(engines, int) and 2 <= engines <= 4096):
            raise EnvError(f"engines={engines}: it should be a whole number, 2 to 4096")
        if not (isinstance(tiers, int) and 1 <= tiers <= TIERS):
            raise EnvError(f"tiers={tiers}: it should be a whole number, 1 to {TIERS}")
        if sees not in LAYOUTS:
            raise EnvError(f"sees={sees!r}: it should be one of {', '.join(map(repr, LAYOUTS))}")
        self.engines, self.tiers, self.sees, roles = engines, tiers, sees, roles_of(sees)
        self.observe = specialised(show_cluster, write_observation=OBSERVERS[sees], HAS_ROLES=roles > 1)
        self.act = specialised(move_engines, HAS_ROLES=roles > 1)
        self.layout = LAYOUTS[sees](engines)
        self.action_space = gym.spaces.MultiDiscrete([choices_of(tiers, roles)] * engines)

    def prepare(self, scenario: Scenario) -> Scenario:
        cluster, scaler = cluster_of(scenario.deployment), scenario.scaler
        tiers = len(cluster.tiers_for(scenario.workload))
        if (cluster.engines, tiers) != (self.engines, self.tiers):
            raise EnvError(
                f"a scenario of {cluster.engines} engines and {tiers} tiers; this environment is made for "
                f"{self.engines} and {self.tiers}"
            )
        if scaler is None or all(parameter.name != "interval_s" for parameter in scaler.parameters):
            name = "no scaler" if scaler is None else f"scaler {scaler.name}, which is never asked"
            raise EnvError(f"a scenario with {name}; it should have one with a parameter interval_s, such as polyserve")
        if self.sees == ROLES and all(pool.role_change_s is None for pool in cluster.pools):
            raise EnvError(
                "a scenario in which all roles are fixed; with sees='roles' it should have prefill and decode engines, "
                "and role_change_s"
            )
        return scenario

    def begin(self, simulation: Simulation, episode: np.record) -> None:
        episode.slots, episode.offset = self.engines, wanted_of(simulation.settings.scaler)

    def in_words(self, action: np.ndarray, simulation: Simulation, filled: int) -> str:
        places = choices_of(self.tiers)
        names = [tier_names(int(choice) // 2 - 1) + (" closed" if choice % 2 else "") for choice in action % places]
        roles = ", ".join("prefill" if choice < places else "decode" for choice in action)
        return f"tiers of the engines {', '.join(names)}" + (f"; roles {roles}" if self.sees == ROLES else "")


class TierScalingEnv(ServingEnv):
    """
    ## Description
    An engine is in a tier (a class of TPOT SLO) or in a common pool, from which the router takes engines for tiers that
    need one. At each check of the scaler the agent sets for every engine the tier that it is in, and whether it is
    closed to new requests. Only engines in a tier have a cost.

    ## Action Space
    `MultiDiscrete([2 (tiers + 1)] * engines)`: for each engine 2 (tier + 1), plus 1 if it is closed; the pool is tier
    -1. So 0 is the pool, 2 is tier 0, and 3 is tier 0 and closed. Every action is legal. The requests of an engine that
    leaves the pool go back to the router. With `sees="roles"` `MultiDiscrete([4 (tiers + 1)] * engines)`: these numbers
    for an engine that is to prefill, and 2 (tiers + 1) more for one that is to decode; a role that is fixed stays,
    and so does that of the last engine of a role.

    ## Observation Space
    `Box(float32)`: the cluster and its tiers, then a slot for each engine, with the base scaler's decision about it;
    docs/observations.md, `observe_day` (v0: `observe_tiers`, without the time of day; `sees="roles"`:
    `observe_roles`). With `observation="dict"`, a Dict of the same numbers.

    ## Rewards
    The gain of all engines since the previous check, divided by the episode's ideal gain, so that the rewards sum to
    the TDG ratio; the first reward includes the gain before the first check. The cost of engines is no part of the
    reward: `result().summary["cost_engine_s"]`.

    ## Starting State
    The first check, one interval after the start.

    ## Episode End
    Terminated when all requests are served, or when those that wait can never be served; truncated at the scenario's
    `until_s`.

    ## Arguments
    - `scenario`: a Scenario or a source of them; the default draws random ones on `engines` engines with `polyserve` as
      scheduler, router and scaler, and the SLOs of its paper. The scenario's scaler is the base; its `interval_s` is
      the time between decisions.
    - `engines`, `tiers`: their numbers in every scenario; None: the preset's if it sets them, else 4 and 4.
    - `sees="day"`, in v0 the preset's if it sets it, else `"tiers"`: which of the observations. `"roles"`: engines that
      change their roles (scenarios with `role_change_s`), as a part of the action.
    - `observation`, `shaping`, `discount`, `render_mode`: as in every environment (docs/environments.md).
    - `trace`, `load`, `device`, `slo`, `requests`, ...: fields of `ServingSpec` (docs/spec.md) to change in the spec
      from which scenarios are drawn.

    ## Version History
    - v1: the observation has the time of day, and the number of engines that the base wants.
    - v0: initial version.
    """

    def __init__(
        self,
        scenario: Scenario | Source | None = None,
        *,
        engines: int | None = None,
        tiers: int | None = None,
        sees: str | None = None,
        **options: Any,
    ):
        interface = scaling_of(engines, tiers, sees, options)
        super().__init__(interface, scenario or random_tiers(interface.engines), **options)


class TierScalingVectorEnv(ServingVectorEnv):
    """`num_envs` environments `TierScalingEnv`, stepped together."""

    env_class = TierScalingEnv


def scaling_of(engines: int | None, tiers: int | None, sees: str | None, options: Mapping[str, Any]) -> TierScaling:
    """Make the interface. engines, tiers, sees: None: those of the preset among the options, else the defaults.

    Raises EnvError for numbers out of range and for unknown `sees`."""
    preset = PRESETS.get(options.get("preset", ""))
    given = DEFAULTS | (preset.arguments if preset is not None else {})
    engines, tiers = given["engines"] if engines is None else engines, given["tiers"] if tiers is None else tiers
    return TierScaling(engines, tiers, given["sees"] if sees is None else sees)


def random_tiers(engines: int) -> ServingSpec:
    """Spec of random scenarios that last a minute or more, as `polyserve` checks once a second."""
    return EPISODES.replaced(
        slo="polyserve",
        requests=200.0 * engines,
        engines=engines,
        scheduler="polyserve",
        router="polyserve",
        scaler="polyserve",
    )

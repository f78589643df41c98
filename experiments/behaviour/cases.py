"""The cases: every registered policy, its options, in what it is recorded in; environments; the vLLM plug-in.

What is registered is asked for, so a new policy, option or environment is in the next recording by itself.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import servegym
from experiments.behaviour import episodes, plugin
from experiments.behaviour.fingerprint import of_result, of_values
from experiments.behaviour.recorded_scenarios import recorded_scenarios
from servegym.envs.registration import ENVIRONMENTS
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy

Case = Callable[[], str]
SCHEDULED = ("one", "overload", "host", "disturbed", "predicted", "four", "pairs", "mixed")
ROUTED = ("four", "pairs", "mixed", "incidents", "prefixes", "tiers")
WITH_OPTIONS = ("overload", "host", "pairs")
LEARNED = {"scheduler": ("learned:cma-engine-batching",), "router": ("learned:cma-cluster-routing",)}
GAINS = (Gain("ta-slo"), Gain("weighted-slo"), Gain("vanilla-slo"), Gain("session-slo"), Gain(first_weight=4.0))
SMALL_BUDGET = 96  # tokens


def cases() -> dict[str, Case]:
    """By name, what gives the digest of a case when it is called."""
    found: dict[str, Case] = {}
    for name, case in itertools.chain(_schedulers(), _routers(), _scalers(), _gains(), _episodes(), _decisions()):
        assert name not in found, name
        found[name] = case
    return found


def simulated(where: str, **arguments: Any) -> str:
    """The digest of a run of a recorded scenario."""
    return of_result(servegym.simulate(**{**recorded_scenarios()[where], **arguments}, record_timeline=True))


def shown(steps: Callable[..., Iterator[Any]], *arguments: str) -> str:
    """The digest of what environments show."""
    return of_values(steps(*arguments))


def decided(where: str, scheduler: str) -> str:
    """The digest of what the plug-in decides for an engine that gets the requests of a recorded scenario."""
    return of_values(plugin.steps(scheduler, recorded_scenarios()[where]["workload"]))


def options_of(policy: Policy) -> Iterator[str]:
    """The policy with one option other than by default: each of its choices, and a small budget of tokens."""
    for parameter in policy.parameters:
        for choice in parameter.choices:
            if choice != parameter.default:
                yield f"{policy.name}:{parameter.name}={choice}"
        if parameter.name == "max_num_batched_tokens":
            yield f"{policy.name}:max_num_batched_tokens={SMALL_BUDGET}"


def _schedulers() -> Iterator[tuple[str, Case]]:
    for name in (*servegym.scheduler_names(), *LEARNED["scheduler"]):
        for where in SCHEDULED:
            yield f"scheduler/{where}/{name}", partial(simulated, where, scheduler=name)
    for name in servegym.scheduler_names():
        for option, where in itertools.product(options_of(servegym.scheduler(name)), WITH_OPTIONS):
            yield f"scheduler/{where}/{option}", partial(simulated, where, scheduler=option)


def _routers() -> Iterator[tuple[str, Case]]:
    names = servegym.router_names()
    options = [option for name in names for option in options_of(servegym.router(name))]
    for name, where in itertools.product((*names, *LEARNED["router"], *options), ROUTED):
        yield f"router/{where}/{name}", partial(simulated, where, router=name)


def _scalers() -> Iterator[tuple[str, Case]]:
    for name, where in itertools.product(servegym.scaler_names(), ("tiers", "tiers-incidents")):
        for scheduler in ("polyserve", "slide-batching"):
            yield f"scaler/{where}/{name}/{scheduler}", partial(simulated, where, scaler=name, scheduler=scheduler)


def _gains() -> Iterator[tuple[str, Case]]:
    for gain in GAINS:
        yield f"gain/overload/{gain.name}:{gain.first_weight}", partial(simulated, "overload", gain=gain)


def _episodes() -> Iterator[tuple[str, Case]]:
    for name, _, _ in ENVIRONMENTS:
        for agent in ("base", "random"):
            yield f"environment/{name}/{agent}", partial(shown, episodes.single, name, agent)
        yield f"environment/{name}/vector", partial(shown, episodes.vector, name)
    yield "environment/ServingParallelEnv/base", partial(shown, episodes.several_agents)


def _decisions() -> Iterator[tuple[str, Case]]:
    where = "four"  # too much for one engine
    for name in (*servegym.scheduler_names(), *LEARNED["scheduler"]):
        yield f"plugin/{where}/{name}", partial(decided, where, name)

"""The cases of `in_turns`, run in one tree: a process that does each as often as it is told, and prints what it took.

The parent runs this file itself, with the tree that is measured on PYTHONPATH: so both trees do the same, and it
imports only names that stand in both. On standard input comes the name of a case in a line; the answer is a line too,
the processor seconds that one turn of it took, of all threads. The first answer is what it took to prepare them all.
"""

import dataclasses
import functools
import itertools
import json
import sys
import time

import numpy as np

from servegym.baselines.registry import router
from servegym.latency_models.profile import load_profile
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.presets import EPISODES, spelled_out
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

try:
    from experiments.benchmarks import cluster, dynamo_clusters, environments, overload, scenarios, schedulers
except ImportError:  # a tree from before the studies left the package
    from servegym.experiments.benchmarks import (  # type: ignore
        cluster,
        dynamo_clusters,
        environments,
        overload,
        scenarios,
        schedulers,
    )  # fmt: skip

REQUESTS, CLUSTER_REQUESTS, ENGINES = 1000, 8000, 64
QUEUED = (700, 2700)
DEEP = (
    "sarathi-fcfs",
    "slide-batching",
    "expected-gain",
    "fastserve-mlfq",
    "flow-prefill",
    "fairbatching",
    "llumnix-reserve",
    "polyserve",
)
DEEP_QUEUED, DEEP_ITERATIONS = 2000, 400
SESSION_ENGINES, SESSION_REQUESTS = (256, 1024), 6000
STEPS, SINGLE_STEPS, RESETS, ROUTED = 150, 4000, 40, 100
SESSION_ENVIRONMENTS, SESSION_EPISODE = 8, 1500


def run_of(simulation):
    """The event loop of a run, from start to end."""

    def run():
        simulation.reset()
        begin = time.process_time()
        simulation.run()
        return time.process_time() - begin

    return run


def one_engine(policy):
    return run_of(Simulation(scenarios.scenario(scenarios.workload(REQUESTS), policy)))


def fresh_episodes():
    simulation = Simulation(scenarios.scenario(scenarios.workload(4 * REQUESTS)))
    return repeated(simulation.reset, 100)


def overloaded(queued):
    return run_of(Simulation(overload.overloaded(overload.saturation_per_s(REQUESTS), queued)))


def deep_queue(policy):
    """The iterations under a scheduler with so many queued that `schedulers` times; what comes before is left out."""
    sizes = dataclasses.replace(
        scenarios.Sizes(), scheduler_queue_length=DEEP_QUEUED, scheduler_iterations=DEEP_ITERATIONS
    )
    timed = schedulers.Timed(schedulers.overloaded(sizes), policy, sizes)
    return lambda: DEEP_ITERATIONS * timed.iteration_s()


def many_engines(router):
    profile = load_profile(cluster.DEVICE)
    served = cluster.workload(profile, ENGINES, CLUSTER_REQUESTS)
    return run_of(Simulation(cluster.scenario(served, profile.deployment(ENGINES), router)))


def sessions(engines):
    """Chat on many engines that cache prefixes: the whole loop. As in sessions.py, which a tree may not have."""
    spec = ServingSpec().replaced(
        trace="chat-sessions", requests=SESSION_REQUESTS, rate_per_s=2.0 * engines, device="a100-llama3-70b-tp4",
        engines=engines, scheduler="vllm-v1", router="kv-aware", prefix_caching="on",
    )  # fmt: skip
    return run_of(Simulation(spec.build(0)))


def few_engines(topology):
    """What is compared with Dynamo's replay, under its router in turn."""
    served = scenarios.workload(REQUESTS, topology.loads * scenarios.RATE_PER_S)
    case = dataclasses.replace(
        scenarios.scenario(served), deployment=deployment_of(topology.spec), router=router("round-robin")
    )
    return run_of(Simulation(case))


def batching(source):
    """Steps of a vector of environments, with new episodes on the way."""
    env = environments.vector("EngineBatching-v0", source)
    actions = environments.drawn_actions(env.action_space)
    for k in range(2 * STEPS):  # to episodes in all stages
        env.step(actions[k % len(actions)])
    return repeated(lambda k: env.step(actions[k % len(actions)]), STEPS, numbered=True)


def routing():
    """Episodes of a vector of routers, from their start, under the base's choices."""
    source = environments.CLUSTER.replaced(requests=float(ROUTED))
    env = environments.vector("ClusterRouting-v0", source(np.random.default_rng(0)), engines=4)

    def run():
        info = env.reset()[1]
        begin = time.process_time()
        for _ in range(ROUTED):
            info = env.step(info["base_action"])[4]
        return time.process_time() - begin

    return run


def session_routing():
    """Episodes of a vector of routers on agents' sessions, whole, under the base's choices. As in environments.py."""
    spec = EPISODES.with_overrides(spelled_out({"preset": "session-fleet", "requests": SESSION_EPISODE}))
    sources = [spec(np.random.default_rng(k)) for k in range(SESSION_ENVIRONMENTS)]
    turns = itertools.cycle(sources)
    env = environments.vector("ClusterRouting-v1", lambda rng: next(turns), SESSION_ENVIRONMENTS)
    info = env.reset()[1]

    def run():
        nonlocal info
        begin = time.process_time()
        for _ in range(SESSION_EPISODE):
            info = env.step(info["base_action"])[4]
        return time.process_time() - begin

    return run


def single():
    env = environments.gym.make("servegym:EngineBatching-v0", scenario=environments.ONE_ENGINE)
    actions = environments.drawn_actions(env.action_space)
    env.reset(seed=environments.SEED)

    def step(k):
        if any(env.step(actions[k % len(actions)])[2:4]):
            env.reset()

    return repeated(step, SINGLE_STEPS, numbered=True)


def new_episodes():
    env = environments.gym.make("servegym:EngineBatching-v0")
    env.reset(seed=environments.SEED)
    return repeated(env.reset, RESETS)


def repeated(call, times, numbered=False):
    def run():
        begin = time.process_time()
        for k in range(times):
            call(k) if numbered else call()
        return time.process_time() - begin

    return run


def cases():
    """What prepares each case, by its name."""
    return {
        "sarathi-fcfs": lambda: one_engine(scenarios.SCHEDULER),
        "slide-batching": lambda: one_engine("slide-batching"),
        "vllm-v1": lambda: one_engine("vllm-v1"),
        "reset": fresh_episodes,
        **{f"overload to {queued}": functools.partial(overloaded, queued) for queued in QUEUED},
        **{f"{DEEP_QUEUED} queued, {policy}": functools.partial(deep_queue, policy) for policy in DEEP},
        **{one.what: functools.partial(few_engines, one) for one in dynamo_clusters.TOPOLOGIES},
        **{f"{ENGINES} engines, {router}": functools.partial(many_engines, router) for router in cluster.BOUNDS_S},
        **{f"sessions, {engines} engines": functools.partial(sessions, engines) for engines in SESSION_ENGINES},
        "vector steps": lambda: batching(environments.ONE_ENGINE),
        "vector steps, load 1.6": lambda: batching(environments.OVERLOADED),
        "routing steps": routing,
        "session steps": session_routing,
        "env.step": single,
        "env.reset": new_episodes,
    }


def main(wanted):
    known = {name: prepare() for name, prepare in cases().items() if not wanted or name in wanted}
    for run in known.values():  # compiles, and fills what is filled once
        run()
    print(json.dumps({"names": list(known), "prepared_s": time.process_time()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(known[line.strip()]()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

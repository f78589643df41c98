"""Small cramped runs, and what of them has to be equal where two policies decide alike."""

import numpy as np

from servegym.baselines.learned.derived import LearnedPolicy
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.routing import routed
from servegym.baselines.observations.routing import routing_layout
from servegym.baselines.registry import scheduler
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.policies.policy import Policy
from servegym.simulator.runs.simulation import Simulation
from tests.random_scenarios import random_device, random_latency, random_workload
from tests.simulator.arrays import as_bytes, router_bytes
from tests.simulator.whole_runs import finished

# What a policy works with: its own numbers, and how it ranked last (equal orders can have other ranks).
OWN = ("parameters", "ranks", "order", "previous_order")
# By itself it lists what may run, beneath a network it ranks all; so the packer sorts others.
LISTS = "flow-prefill"


def served_by(policy: Policy, seed: int = 0, engines: int = 1, role: str = "both") -> Simulation:
    """A run to the end. role "prefill": half of the engines prefill, the others decode."""
    rng = np.random.default_rng(seed)
    workload = random_workload(rng)
    device, estimator = random_device(rng)[0], random_latency(rng)[0]
    largest = int((workload.table["prompt_tokens"] + workload.table["output_tokens"]).max())
    blocks = largest // 8 + int(rng.integers(2, 60))

    def pool(role: str, engines: int) -> Deployment:
        return Deployment(device, estimator, blocks, engines, block_tokens=8, role=role)

    if role == "both":
        deployment: Deployment | Cluster = pool(role, engines)
    else:
        deployment = Cluster((pool("prefill", engines // 2), pool("decode", engines - engines // 2)))
    by_kind = {"scheduler": scheduler("edf"), "router": None, "scaler": None} | {policy.kind: policy}
    scenario = Scenario(workload, deployment, by_kind["scheduler"], router=by_kind["router"], scaler=by_kind["scaler"])  # type: ignore[arg-type]
    return finished(scenario)


def refusing_where_late(base: Policy, engines: int = 4) -> LearnedPolicy:
    """A router by network: the engine with the largest `spare`, 0.1 more where the base chose it; if none is above 0,
    the request is refused."""
    layout = routing_layout(engines + 1)
    weight = np.zeros((1, len(layout.whole_fields) + len(layout.slot_fields)))
    names = [field.name for field in layout.slot_fields]
    for name, factor in (("spare", 1.0), ("chosen", 0.1)):
        weight[0, len(layout.whole_fields) + names.index(name)] = factor
    network = Network.from_layers(Shape.shared_by(layout, hidden=()), [(weight, np.zeros(1))])
    return routed(base, network, refuse=True)


def bytes_of(simulation: Simulation) -> dict[str, bytes]:
    """All arrays of a run but for OWN, and without the ranks that the last batch went by and in which order it sorted
    them; what a router and a scaler know, too."""
    known = router_bytes(simulation.router_state)
    named = as_bytes(simulation.arrays) | {f"router_state.{k}": v for k, v in known.items()}
    engines = simulation.arrays.engines.copy()
    engines["visits"] = 0
    named["engines"] = engines.tobytes()
    packing = simulation.arrays.packing.copy()
    packing["window_length"] = 0  # of listed requests there is no window
    named["packing"] = repr(packing.tolist()).encode()
    own = OWN
    if LISTS in simulation.scenario.scheduler.label:
        own = (*OWN, "scratch")
        limits = simulation.arrays.limits.copy()
        limits["listed"] = 0
        named["limits"], named["sums"] = repr(limits.tolist()).encode(), simulation.arrays.sums[:2].tobytes()
    return {name: value for name, value in named.items() if name not in own and not name.endswith("parameters")}


def check_served(simulation: Simulation) -> None:
    """Every request is finished with all its tokens, and no memory is held."""
    arrays, table = simulation.arrays, simulation.scenario.workload.table
    np.testing.assert_array_equal(arrays.requests["num_output_tokens"], table["output_tokens"])
    assert np.isfinite(arrays.outcomes["finish_s"]).all() and arrays.status[0].finished == len(table)
    assert (arrays.engines["free_blocks"] == arrays.engines["total_blocks"]).all()
    assert (arrays.requests["blocks"] == 0).all() and (arrays.engines["queue_length"] == 0).all()

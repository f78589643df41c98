"""servegym: a gym for LLM serving.

    import servegym

    result = servegym.simulate("azure-conv", scheduler="slide-batching", rate_per_s=6)
    result.summary["tdg_ratio"], result.requests      # figures of the run, one row a request

    import gymnasium as gym

    env = gym.make("servegym:EngineBatching-v0")      # importing servegym registers its environments

Names load when they are first used, so that `import servegym` is light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from servegym.envs.registration import register_all
from servegym.simulator.compilation.locks import no_garbage_collection

if TYPE_CHECKING:
    from servegym.api import simulate as simulate
    from servegym.api import stream as stream
    from servegym.baselines.registry import router as router
    from servegym.baselines.registry import router_names as router_names
    from servegym.baselines.registry import scaler as scaler
    from servegym.baselines.registry import scaler_names as scaler_names
    from servegym.baselines.registry import scheduler as scheduler
    from servegym.baselines.registry import scheduler_names as scheduler_names
    from servegym.errors import ServegymError as ServegymError
    from servegym.evaluation.policy_checks.checking import check_policy as check_policy
    from servegym.evaluation.scoring.results import Score as Score
    from servegym.evaluation.scoring.scoring import score as score
    from servegym.latency_models.profile import load_profile as load_profile
    from servegym.latency_models.profile import profile_names as profile_names
    from servegym.scenarios.demand import Demand as Demand
    from servegym.scenarios.documents import load_spec as load_spec
    from servegym.scenarios.parts import Fleet as Fleet
    from servegym.scenarios.parts import Imperfection as Imperfection
    from servegym.scenarios.parts import Policies as Policies
    from servegym.scenarios.ranges import Range as Range
    from servegym.scenarios.spec import ServingSpec as ServingSpec
    from servegym.scenarios.values import Pool as Pool
    from servegym.simulator.features.disturbances import Correction as Correction
    from servegym.simulator.features.disturbances import Disturbance as Disturbance
    from servegym.simulator.fleet.incidents import Incident as Incident
    from servegym.simulator.fleet.startup import Startup as Startup
    from servegym.simulator.inputs.cluster import Cluster as Cluster
    from servegym.simulator.inputs.cluster import Link as Link
    from servegym.simulator.inputs.costs import Costs as Costs
    from servegym.simulator.inputs.deployment import Deployment as Deployment
    from servegym.simulator.inputs.scenario import Scenario as Scenario
    from servegym.simulator.inputs.workload import Workload as Workload
    from servegym.simulator.memory.prefixes import PrefixStore as PrefixStore
    from servegym.simulator.policies.gains import Gain as Gain
    from servegym.simulator.policies.policy import Parameter as Parameter
    from servegym.simulator.policies.policy import Policy as Policy
    from servegym.simulator.policies.policy import register as register
    from servegym.simulator.runs.results import Result as Result
    from servegym.simulator.runs.simulation import Simulation as Simulation
    from servegym.traces.workloads import build_workload as build_workload
    from servegym.traces.workloads import trace_names as trace_names
    from servegym.tuners.crediting import credit_requests as credit_requests
    from servegym.tuners.own_networks import export_module as export_module
    from servegym.tuners.own_networks import export_sb3 as export_sb3
    from servegym.tuners.own_networks import sb3_policy as sb3_policy

__version__ = "0.1.0"

_HOMES = {
    "Score": "evaluation.scoring.results",
    "check_policy": "evaluation.policy_checks.checking",
    "credit_requests": "tuners.crediting",
    "export_module": "tuners.own_networks",
    "export_sb3": "tuners.own_networks",
    "sb3_policy": "tuners.own_networks",
    "score": "evaluation.scoring.scoring",
    "simulate": "api",
    "stream": "api",
    "router": "baselines.registry",
    "router_names": "baselines.registry",
    "scaler": "baselines.registry",
    "scaler_names": "baselines.registry",
    "scheduler": "baselines.registry",
    "scheduler_names": "baselines.registry",
    "load_profile": "latency_models.profile",
    "profile_names": "latency_models.profile",
    "Cluster": "simulator.inputs.cluster",
    "Link": "simulator.inputs.cluster",
    "Costs": "simulator.inputs.costs",
    "Deployment": "simulator.inputs.deployment",
    "Correction": "simulator.features.disturbances",
    "Disturbance": "simulator.features.disturbances",
    "ServegymError": "errors",
    "Gain": "simulator.policies.gains",
    "Incident": "simulator.fleet.incidents",
    "Parameter": "simulator.policies.policy",
    "Policy": "simulator.policies.policy",
    "register": "simulator.policies.policy",
    "PrefixStore": "simulator.memory.prefixes",
    "Demand": "scenarios.demand",
    "Fleet": "scenarios.parts",
    "Imperfection": "scenarios.parts",
    "Policies": "scenarios.parts",
    "Pool": "scenarios.values",
    "Range": "scenarios.ranges",
    "ServingSpec": "scenarios.spec",
    "load_spec": "scenarios.documents",
    "Result": "simulator.runs.results",
    "Scenario": "simulator.inputs.scenario",
    "Simulation": "simulator.runs.simulation",
    "Startup": "simulator.fleet.startup",
    "Workload": "simulator.inputs.workload",
    "build_workload": "traces.workloads",
    "trace_names": "traces.workloads",
}
__all__ = ["__version__", *sorted(_HOMES)]

register_all()


if not TYPE_CHECKING:  # to a type checker, a name that is not listed above is an error

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'servegym' has no attribute {name!r}")
        with no_garbage_collection():
            return getattr(importlib.import_module(f"servegym.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

"""Artifacts to be saved and read."""

import json

import numpy as np

from servegym.baselines.artifact import Artifact
from servegym.baselines.learned.controller import controlled
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.ranking import ranked
from servegym.baselines.learned.routing import routed
from servegym.baselines.learned.scaling import choices_of, scaled
from servegym.baselines.learned.scheduling import CONTROLS, scheduled
from servegym.baselines.observations.caching import caching_layout
from servegym.baselines.observations.day import day_layout
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.observations.queue import queue_layout
from servegym.baselines.observations.roles import roles_layout
from servegym.baselines.observations.routing import routing_layout
from servegym.baselines.observations.scheduling import scheduling_layout
from servegym.baselines.observations.sessions import caching_sessions_layout, scheduling_sessions_layout
from servegym.baselines.observations.tiers import tiers_layout
from servegym.baselines.registry import router, scaler, scheduler
from servegym.simulator.policies.policy import Policy

PROVENANCE = {"trained_on": {"traces": ["azure-conv"], "seeds": [0, 1]}, "steps": 3}


ESTIMATOR = {"profile": "mine", "form": "linear", "coefficients": [1e-9, 0.0, 2.5], "fit": {"mape_percent": 4.5}}


WORKLOAD = {
    "slo": "proserve", "ttft_slo_s": 1.0, "tpot_slo_s": 0.05, "ttlt_slo_s": None, "first_token_weight": 4.2,
    "weight_of_priority": {"1": 2.0, "0": 1.0}, "traces": ["azure-conv"], "devices": ["a100-llama3-8b"],
    "loads": [0.7, 1.4], "requests": 500, "prefill": 2, "decode": 1,
}  # fmt: skip


def random(shape: Shape) -> Network:
    return Network.random(shape, np.random.default_rng(7))


def controller() -> Policy:
    base = scheduler("slide-batching:load=c")
    return controlled(base, ("gamma", "eta"), random(Shape.dense_on(engine_layout(), 2, hidden=(4,), output="tanh")))


POLICIES = {
    "controller": controller,
    "ranking": lambda: ranked(scheduler("edf"), random(Shape.shared_by(queue_layout(5), hidden=(4, 3)))),
    "scheduling": lambda: scheduled(
        scheduler("expected-gain"), random(Shape.shared_by(scheduling_layout(5), CONTROLS + 1, "joint", hidden=(4,)))
    ),
    "scheduling with sessions": lambda: scheduled(
        scheduler("expected-gain"),
        random(Shape.shared_by(scheduling_sessions_layout(5), CONTROLS + 1, "joint", hidden=(4,))),
        sees="scheduling-sessions",
    ),
    "routing": lambda: routed(router("min-load"), random(Shape.shared_by(routing_layout(4), activation="relu"))),
    "caching": lambda: routed(router("kv-aware"), random(Shape.shared_by(caching_layout(4))), sees="caching"),
    "day": lambda: scaled(scaler("forecast"), random(Shape.shared_by(day_layout(4), choices_of(1))), sees="day"),
    "roles": lambda: scaled(
        scaler("pd-ratio"), random(Shape.shared_by(roles_layout(4), choices_of(1, 2))), sees="roles"
    ),
    "caching with sessions": lambda: routed(
        router("kv-aware"), random(Shape.shared_by(caching_sessions_layout(4))), sees="caching-sessions"
    ),
    "refusing": lambda: routed(
        router("predicted-cost"), random(Shape.shared_by(caching_layout(5))), sees="caching", refuse=True
    ),
    "scaling": lambda: scaled(scaler("polyserve"), random(Shape.shared_by(tiers_layout(4), choices_of(2)))),
}


HEURISTICS = {
    "heuristic": lambda: scheduler("slide-batching:gamma=2"),
    "other defaults by a word": lambda: scheduler("slide-batching:variant=xllm"),
    "one of them set": lambda: scheduler("slide-batching:variant=xllm,hopeless=include,eta=0.02"),
    "router": lambda: router("random:seed=3"),
}


def several() -> Artifact:
    policies = {
        "router": router("gorouting:alpha=0.8,mu=0.2"), "decode_scheduler": scheduler("vllm-v1:policy=priority"),
        "scheduler": controller(), "scaler": POLICIES["scaling"](),
    }  # fmt: skip
    return Artifact(policies, ESTIMATOR, WORKLOAD, PROVENANCE)


def changed(path, **changes):
    """The document with some of it replaced; None: taken out. Keys as a__b."""
    document = json.loads(path.read_text())
    for key, value in changes.items():
        *parents, last = key.split("__")
        part = document
        for parent in parents:
            part = part[parent]
        if value is None:
            del part[last]
        else:
            part[last] = value
    path.write_text(json.dumps(document))


OF = "policies__scheduler__"

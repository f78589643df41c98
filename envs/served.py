"""What random scenarios are cut from, prepared once in a process: requests with their SLOs, devices, policies."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from servegym.baselines import registry
from servegym.envs.ranges import ScenarioError
from servegym.envs.saturation import known_saturation_rate_per_s
from servegym.latency_models.profile import Profile, load_profile
from servegym.simulator.deployment import Deployment
from servegym.simulator.policies import Policy
from servegym.simulator.types import TIERS, WORKLOAD
from servegym.simulator.workload import FIELDS
from servegym.traces.families import FAMILIES
from servegym.traces.workloads import build_workload

# Seeds of episodes, and of what is drawn of a family: those of one split are not those of the other.
FIRST_TEST_SEED = 1_000_000
SPLITS = {"train": range(FIRST_TEST_SEED), "test": range(FIRST_TEST_SEED, 2**31)}

FAMILY_ROWS = 32_768  # an episode takes some of them in a row
TRAIN_SHARE = 0.7  # of a file, from its beginning; the rest is the test's


class Served(NamedTuple):
    """Of a trace, a recipe, a device and a split."""

    table: np.ndarray  # WORKLOAD[rows], all at time 0; not to be written to
    saturation_rate_per_s: float  # of one engine
    tiers_s: tuple[float, ...]  # TPOT SLOs of the tiers

    def rows(self, first: int, requests: int) -> np.ndarray:
        """WORKLOAD[requests]: a copy of so many requests in a row, to the last byte (NumPy leaves padding out)."""
        return self.table[first : first + requests].view("u1").copy().view(WORKLOAD)


@functools.cache
def served(trace: str, slo: str, device: str, split: str, max_total_tokens: int | None) -> Served:
    """Requests of a trace with a recipe's SLOs, without those that an engine of the device cannot hold.

    Of a family the splits have requests of different seeds; of a file one has the first 70 %, the other the rest.
    Raises ScenarioError where a split has none, and as `build_workload` and `load_profile`.
    """
    profile, is_family = profile_of(device), trace in FAMILIES
    capacity = profile.kv.total_blocks * profile.kv.block_tokens
    table = build_workload(
        trace,
        requests=FAMILY_ROWS if is_family else None,
        slo=slo,
        arrivals="at-once",
        seed=SPLITS[split].start,
        max_total_tokens=capacity if max_total_tokens is None else min(max_total_tokens, capacity),
        idle_tpot_s=profile.idle_tpot_s,
    ).table
    if not is_family:
        cut = int(TRAIN_SHARE * len(table))
        table = table[:cut] if split == "train" else table[cut:]
    if len(table) == 0:
        raise ScenarioError(f"trace {trace}: its {split} part has no request; the file should be longer")
    tiers = np.unique(table["tpot_slo_s"])
    if len(tiers) > TIERS:
        tiers = tiers[np.arange(TIERS) * (len(tiers) - 1) // (TIERS - 1)]
    return Served(table, known_saturation_rate_per_s(trace, device, slo, max_total_tokens), tuple(tiers.tolist()))


def _without_padding(table: np.ndarray) -> np.ndarray:
    """The same rows, all zeros between their fields, and read-only."""
    clean = np.zeros(len(table) * WORKLOAD.itemsize, "u1").view(WORKLOAD)
    for field in FIELDS:
        clean[field] = table[field]
    clean.flags.writeable = False
    return clean


@functools.cache
def profile_of(device: str) -> Profile:
    return load_profile(device)


@functools.cache
def pool_of(device: str, engines: int) -> Deployment:
    return profile_of(device).deployment(engines)


def policy_of(kind: str, policy: str | Policy) -> Policy:
    """A policy, or that of the name. Raises PolicyError for an unknown one."""
    return policy if isinstance(policy, Policy) else _named(kind, policy)


@functools.cache
def _named(kind: str, text: str) -> Policy:
    find = {"scheduler": registry.scheduler, "router": registry.router, "scaler": registry.scaler}
    return find[kind](text)

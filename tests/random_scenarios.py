"""Random scenarios for the comparison with the reference simulator: small and cramped, with ties and bursts."""

import dataclasses
from typing import Any

import numpy as np

from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.features.speculation import Speculation
from servegym.simulator.inputs.deployment import HostMemory
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.kv_groups import KvCacheGroup
from servegym.simulator.memory.prefixes import Prompts
from servegym.simulator.policies.gains import Gain
from tests.reference import speculation as reference
from tests.reference.adapters import Adapters as ReferenceAdapters
from tests.reference.latency import Linear, Piecewise


def random_workload(random: np.random.Generator) -> Workload:
    n = int(random.integers(1, 45))
    arrival_s = np.sort(random.uniform(0, random.choice([0.05, 0.5, 3.0]), n))
    if random.random() < 0.5:  # bursts: several at one instant
        arrival_s = np.sort(arrival_s[random.integers(0, n, n)])
    priority, ttlt_share = random.integers(0, 3, n), random.choice([0.2, 0.6])
    return Workload.from_columns(
        {
            "arrival_s": arrival_s,
            "prompt_tokens": random.integers(1, random.choice([160, 160, 160, 700]), n),
            "output_tokens": random.choice([1, 2, 5, 20, 60], n),
            "priority": priority,
            "weight": 4.0 - priority,
            "client": random.integers(0, random.choice([1, 4]), n) * 3,
            "application": random.integers(0, random.choice([1, 3]), n) * 2,
            "urgency": random.integers(0, 5, n),
            "predicted_output_tokens": np.where(random.random(n) < 0.2, np.nan, random.choice([1, 3, 20.5, 40], n)),
            "ttft_slo_s": random.choice([0.1, 0.3, 1.0], n),
            "tpot_slo_s": random.choice([0.02, 0.05], n),
            "ttlt_slo_s": np.where(random.random(n) < ttlt_share, random.choice([0.4, 2.0], n), np.inf),
        }
    )


def with_prefixes(random: np.random.Generator, workload: Workload) -> Workload:
    """Prompts, half of the time with their answers, that begin alike: each goes some way down a tree, and then its own
    way."""
    chunk_tokens = int(random.choice([1, 4, 6, 16, 24]))
    numbers: dict[tuple, int] = {}
    rows, lengths = [], workload.table["prompt_tokens"].astype("i8")
    if random.random() < 0.5:
        lengths += workload.table["output_tokens"]
    for request, tokens in enumerate(lengths.tolist()):
        chunks = tokens // chunk_tokens
        shared = int(random.integers(0, chunks + 1))
        path = [*random.integers(0, random.choice([1, 2]), shared).tolist(), *([-1 - request] * (chunks - shared))]
        rows.append([numbers.setdefault(tuple(path[: i + 1]), len(numbers)) for i in range(chunks)])
    offsets = np.cumsum([0, *map(len, rows)])
    chunks = np.array([chunk for row in rows for chunk in row], "i8")
    return dataclasses.replace(workload, prefixes=Prompts(chunk_tokens, offsets, chunks))


def with_adapters(random: np.random.Generator, workload: Workload) -> Workload:
    """A few LoRA adapters or many, with gaps between their numbers; some requests have none."""
    adapter = random.integers(0, random.choice([2, 4, 12]), len(workload)) * int(random.choice([1, 7]))
    return workload.replace(adapter=adapter)


def random_adapters(random: np.random.Generator, exact: bool = False) -> Adapters:
    """Memory for a few; times of nothing, of less than an iteration, and of many. exact: whole numbers of 2^-26 s."""
    max_loras, more = int(random.integers(1, 5)), int(random.integers(0, 4))
    load_s, activate_s = random.choice([0.0, 2.0**-9, 0.25] if exact else [0.0, 1e-3, 0.2], 2).tolist()
    return Adapters(max_loras, load_s, activate_s, max_loras + more if random.random() < 0.7 else None)


def reference_adapters(one: Adapters | None) -> ReferenceAdapters | None:
    return None if one is None else ReferenceAdapters(**one.values)


@dataclasses.dataclass(frozen=True)
class Predictions:
    urgency: np.ndarray
    predicted_output_tokens: np.ndarray
    ready_s: np.ndarray


@dataclasses.dataclass(frozen=True)
class RandomPredictor:
    """What a predictor may say: anything, and never before it has spoken of an earlier request."""

    seed: int

    def predict(self, workload: Workload) -> Predictions:
        random, n = np.random.default_rng(self.seed), len(workload)
        delay_s = np.where(random.random(n) < 0.5, 0.0, random.choice([0.001, 0.05, 0.4], n))
        return Predictions(
            random.integers(0, 5, n),
            np.where(random.random(n) < 0.2, np.nan, random.choice([0.5, 2, 30], n)),
            np.maximum.accumulate(workload.table["arrival_s"] + delay_s),
        )


def random_host(random: np.random.Generator, total_blocks: int) -> HostMemory | None:
    if random.random() < 0.4:
        return None
    load_s, save_s = random.choice([0.0, 2e-5, 2e-4, 1e-2], 2)
    return HostMemory(int(random.integers(0, total_blocks + 1)), float(load_s), float(save_s))


WITH_STATES = [0.11, 0.11, 0.1, 0.1, 0.1, 0.13, 0.12, 0.12, 0.11]  # shares of the kinds of groups that cache prefixes


def random_groups(random: np.random.Generator, caching: bool = False) -> tuple[KvCacheGroup, ...]:
    """Groups that keep all tokens, the last ones or states. caching: groups with which prefixes can be cached."""
    full = KvCacheGroup(int(random.choice([1, 4, 16])))
    window = KvCacheGroup(int(random.choice([1, 4, 8])), int(random.integers(1, 60)), bool(random.random() < 0.3))
    state = KvCacheGroup(16, state=True)
    counts = random.choice([(1, 1, 0), (1, 3, 0), (0, 1, 0), (2, 0, 1), (1, 0, 3), (1, 2, 2), (0, 0, 1)])
    if caching:
        counts = random.choice(
            [(1, 1, 0), (1, 3, 0), (0, 1, 0), (0, 2, 0), (2, 0, 0), (2, 2, 0), (1, 0, 1), (2, 0, 3), (0, 0, 1)],
            p=WITH_STATES,
        )
        full = KvCacheGroup(int(random.choice([1, 4, 6, 10])))
        state = KvCacheGroup(full.block_tokens, state=True, checkpoints=bool(random.random() < 0.5))
        size = int(random.choice([1, 4, 6, 9]))
        window = KvCacheGroup(size, int(random.integers(2, 60)))
        if counts[0] and random.random() < 0.3:
            full, window = KvCacheGroup(int(random.choice([1, 4, 6]))), KvCacheGroup(12, 12 * size, local=True)
    return sum(((kind,) * int(count) for kind, count in zip((full, window, state), counts, strict=True)), ())


def random_latency(random: np.random.Generator) -> tuple[LatencyModel, Linear]:
    """A linear estimator, as the compiled simulator and as the reference take it."""
    scale = np.array([2e-8, 2e-8, 6e-5, 1e-6, 2e-4, 8e-3])
    scale[1] *= random.choice([1, 1, 100])  # what is cached costs little, much (or, of decodes, nothing)
    scale[3] *= random.choice([0, 1, 1, 100])
    values = dict(zip(("a_p", "b_p", "c_p", "a_d", "b_d", "t_c"), scale * random.uniform(0.3, 2, 6), strict=True))
    return LatencyModel.from_values("linear", values), Linear(**values)


def random_device(random: np.random.Generator) -> tuple[LatencyModel, Piecewise]:
    """A piecewise device: 0 tokens, then a kink at 64."""
    base_s = np.cumsum([5e-3, 1e-3, 4e-3, 2e-2] * random.uniform(0.5, 2, 4)).tolist()
    values = {
        "knots_tokens": [1.0, 16.0, 64.0, 256.0], "base_s": base_s, "a_p": 3e-8, "b_p": 1e-8, "f_p": 1e-4,
        "a_d": 2e-6, "f_d": 2e-4, "t_c": 1e-3,
    }  # fmt: skip
    return LatencyModel.from_values("piecewise", values), Piecewise(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    )


def random_drift(random: np.random.Generator) -> tuple[Disturbance, Correction | None]:
    """Half of the time a device that drifts, and half of these times an estimator that follows it."""
    if random.random() < 0.5:
        return Disturbance(), None
    drift = Disturbance(drift_per_s=float(random.choice([0.0, 0.02])), shift_s=0.3, shift_ratio=1.5)
    return drift, Correction(0.8, 3, bool(random.random() < 0.3)) if random.random() < 0.5 else None


def with_turns(random: np.random.Generator, workload: Workload) -> Workload:
    """Some of the requests follow others, some of these several the same one; think times are exact in float64."""
    n = len(workload)
    share = random.choice([0.2, 0.6, 0.9])
    after = np.where(random.random(n) < share, (np.arange(n) * random.random(n)).astype(int), -1)
    after[0] = -1
    if random.random() < 0.5:  # chains
        after = np.where(after < 0, -1, np.maximum(0, np.arange(n) - random.integers(1, 4)))
    shuffled = random.permutation(n)  # which follows which has nothing to do with the order of the rows
    place = np.argsort(shuffled)
    after = np.where(after < 0, -1, place[after])[shuffled]
    think_s = random.choice([0.0, 2.0**-7, 2.0**-5, 0.25], n)
    columns = {field: workload.table[field] for field in workload.table.dtype.names}
    return Workload.from_columns(columns, turns=SessionDependencies(after, think_s))


def random_limits(random: np.random.Generator) -> dict[str, int | None]:
    """clients and max_concurrency."""
    clients, most = random.choice([0, 1, 3, 10], 2)
    return {"clients": int(clients) or None, "max_concurrency": int(most) or None}


def random_front_end(random: np.random.Generator) -> FrontEnd:
    """Next to nothing, as much as an iteration, or a bottleneck; whole numbers of 2^-26 s, some of them 0."""
    scale_s = np.array([2.0**-7, 2.0**-14, 2.0**-13, 2.0**-7]) * random.choice([2.0**-7, 1, 1, 8])
    times = (scale_s * random.choice([0, 1, 3], 4)).tolist()
    return FrontEnd(*times, one_process=bool(random.random() < 0.5))


def random_speculation(random: np.random.Generator) -> Speculation:
    """A few drafts or many, next to all or none of them accepted."""
    k = int(random.choice([1, 2, 4, 9]))
    rates = random.choice([0.0, 0.3, 0.7, 0.95, 1.0], k + int(random.integers(0, 2)))
    acceptance = tuple(rates.tolist()) if random.random() < 0.5 else float(rates[0])
    costs = (np.array([2e-3, 2e-4]) * random.choice([0, 1, 5], 2)).tolist()
    return Speculation(k, acceptance, *costs, free_verification=bool(random.random() < 0.25))


def reference_speculation(one: Speculation | None, seed: int) -> reference.Speculation | None:
    if one is None:
        return None
    said = dataclasses.asdict(one) | {"acceptance": tuple(one.by_position.tolist())}
    return reference.Speculation(**said, seed=seed)


def turns_of(workload: Workload) -> dict[str, np.ndarray]:
    """For the rows of the reference simulator."""
    return {} if workload.turns is None else {"after": workload.turns.after, "think_s": workload.turns.think_s}


def reference_rows(workload: Workload, gain: Gain, predictor: RandomPredictor | None) -> list[dict]:
    columns: dict[str, Any] = {field: workload.table[field] for field in workload.table.dtype.names}
    columns["first_token_gain"], columns["decode_token_gain"] = gain.token_gains(workload.table)
    if predictor is not None:
        columns |= dataclasses.asdict(predictor.predict(workload))
    columns |= turns_of(workload)
    rows: list[dict] = [{field: column[i].item() for field, column in columns.items()} for i in range(len(workload))]
    if workload.prefixes is not None:
        offsets, chunks = workload.prefixes.offsets, workload.prefixes.chunks
        for i, row in enumerate(rows):
            row["chunks"] = chunks[offsets[i] : offsets[i + 1]].tolist()
    return rows

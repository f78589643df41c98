"""What serving results on Ascend 910B devices say of single batches.

A result gives means over a run, not iterations. A decode step is taken as the median time between tokens where it is
given (else the mean time of an output token), its batch by Little's law: decoded tokens x mean TPOT / duration. A
prompt's prefill is the run's time a request, less the share that decode steps have in a mean TPOT: prefills come
first and hold decodes up.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from servegym.latency_models.building.tables import read_table
from servegym.latency_models.model import LatencyModel
from servegym.simulator.records.types import BATCH

TABLE = "ascend_910b_measured_points"
BATCH_TOKENS = 8192  # assumed: the engine's token budget, to which longer prompts are cut and shorter ones gathered
AUDIO_TOKENS_PER_S = 25  # of Qwen2.5-Omni's audio encoder


@dataclass(frozen=True)
class Point:
    """duration_s is known of these batches (BATCH[n]), each of which happens counts[n] times in it.

    fitted: whether a model was fitted to it; it is then no test of that model.
    """

    name: str
    batches: np.ndarray
    counts: np.ndarray
    duration_s: float
    fitted: bool = False

    def predicted_s(self, model: LatencyModel) -> float:
        return float(self.counts @ model.evaluate(self.batches))

    def sums(self, *fields: str) -> list[float]:
        """Sums over the batches as they happen of these fields of BATCH."""
        return [float(self.counts @ self.batches[field]) for field in fields]


def decodes(requests: float, cached_tokens: float) -> np.ndarray:
    """BATCH[1]: decodes of equally many cached tokens each."""
    batch = np.zeros(1, dtype=BATCH)
    batch["decode_requests"] = requests
    batch["decode_cached_tokens"] = requests * cached_tokens
    batch["longest_decode_cached"] = cached_tokens
    return batch


def prefills(requests: float, tokens: float, cached_tokens: float = 0.0) -> np.ndarray:
    """BATCH[1]: equal chunks with equally many tokens cached before each."""
    batch = np.zeros(1, dtype=BATCH)
    batch["prefill_requests"] = requests
    batch["prefill_tokens"] = requests * tokens
    batch["prefill_tokens_squared"] = requests * tokens**2
    batch["prefill_tokens_cached"] = requests * tokens * cached_tokens
    batch["prefill_cached_tokens"] = requests * cached_tokens
    batch["longest_prefill_tokens"] = tokens
    return batch


def _engine(engine: str, model: str = "Qwen3-8B", cards: str = "1") -> pd.DataFrame:
    table = read_table(TABLE, ".csv")
    return table[(table["engine"] == engine) & (table["model"] == model) & (table["cards_or_tp"] == cards)]


def _step(run) -> Point:
    """A decode step of a run whose tokens were counted."""
    prompt, output = (run.total_input_tokens / run.num_prompts, run.total_output_tokens / run.num_prompts)
    requests = (run.total_output_tokens - run.num_prompts) * run.mean_tpot_ms * 1e-3 / run.duration_s
    cached = prompt + output / 2
    name = f"decode step of Qwen3-8B, {requests:.1f} requests, {cached:.0f} cached tokens each"
    return Point(name, decodes(requests, cached), np.ones(1), run.median_itl_ms * 1e-3, fitted=True)


def _prompt(run) -> Point:
    """The prefill of one prompt of a run, in batches of BATCH_TOKENS."""
    tokens = int(run.input_len)
    together = BATCH_TOKENS // tokens
    if together:
        batches = prefills(together, tokens)
        counts = np.array([1 / together])
    else:
        starts = range(0, tokens, BATCH_TOKENS)
        batches = np.concatenate([prefills(1, min(BATCH_TOKENS, tokens - start), start) for start in starts])
        counts = np.ones(len(batches))
    duration_s = (1 - run.median_itl_ms / run.mean_tpot_ms) * run.duration_s / run.num_prompts
    return Point(f"prefill of Qwen3-8B, one prompt of {tokens} tokens", batches, counts, duration_s, fitted=True)


def eager_points() -> tuple[list[Point], list[Point]]:
    """(decode steps, prefills) of Qwen3-8B under vLLM-Ascend 0.9.1, of runs long enough to have decode steps."""
    runs = _engine("vLLM-Ascend 0.9.1")
    runs = runs[runs["total_output_tokens"] >= 50 * runs["num_prompts"]]
    of_one_length = runs[runs["input_len"].str.isdigit()]
    return [_step(run) for run in runs.itertuples()], [_prompt(run) for run in of_one_length.itertuples()]


def graph_points() -> tuple[Point, Point]:
    """Qwen3-8B in graph mode: a decode step of the documentation's run, and a wave of the performance test.

    A wave: as many prompts as run at once are prefilled together, then decoded to their end.
    """
    step = _step(next(_engine("vLLM-Ascend (docs HEAD)").itertuples()))
    run = next(_engine("vLLM-Ascend CI").itertuples())
    requests, prompt, output = int(run.max_concurrency), int(run.input_len), int(run.output_len)
    tokens_per_s = float(run.remark.split()[1])  # "baseline 1514 output tok/s ..."
    wave = Point(
        f"wave of {requests} requests of Qwen3-8B, {prompt} prompt and {output} output tokens each",
        np.concatenate([prefills(requests, prompt), decodes(requests, prompt + output / 2)]),
        np.array([1.0, output - 1.0]),
        requests * output / tokens_per_s,
    )
    return step, wave


def qwen3_32b_points() -> list[Point]:
    """The one step of Qwen3-32B on four devices in 16 bit."""
    runs = _engine("vLLM-Ascend 0.11.0rc2", "Qwen3-32B", "4")
    return [
        Point(
            f"decode step of Qwen3-32B, 1 request, {run.input_len} cached tokens",
            decodes(1, int(run.input_len)),
            np.ones(1),
            run.mean_tpot_ms * 1e-3,
        )
        for run in runs.itertuples()
    ]


def omni_points() -> list[Point]:
    """Steps of Qwen2.5-Omni-7B, whose language model has the shape of Qwen2-7B; it also runs an audio encoder."""
    points = []
    for run in _engine("vLLM-Ascend 0.11.0", "Qwen2.5-Omni-7B").itertuples():
        seconds = int(run.input_len.split()[1])  # "audio 30 s"
        requests, cached = int(run.max_concurrency), AUDIO_TOKENS_PER_S * seconds + int(run.output_len) / 2
        name = f"decode step of Qwen2.5-Omni-7B, {requests} requests, {cached:.0f} cached tokens each"
        points.append(Point(name, decodes(requests, cached), np.ones(1), run.mean_tpot_ms * 1e-3))
    return points

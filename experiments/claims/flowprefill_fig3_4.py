"""FlowPrefill, Figures 3 and 4: a long prompt in chunks, and prompts of one length in batches, on an idle engine."""

from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.harness import Cell, Check, Range, claim, grid, values
from experiments.claims.harness.settings import idle_prefill_s, profile
from servegym.simulator.records.types import BATCH

LONG_PROMPT = (28_000, 32_768)  # tokens, drawn: the paper's is 32K
CHUNKS = (256, 512, 1024, 2048, 4096, 8192)
SHORT, LONG = (32, 256), (4096, 8192)  # tokens of a prompt, drawn
BATCH_SIZE = 8
PROMPTS = 200  # drawn of each kind
TIGHT_TTFT_S = 0.25  # of text, Llama3-8B
COLLAPSE, GAIN = Range(high=0.7), Range(low=2.0)
NOTHING, LINEAR = Range(0.9, 1.15), Range(0.85 * BATCH_SIZE, 1.15 * BATCH_SIZE)


def measure(cell: Cell) -> dict[str, Any]:
    """throughput_N: of the long prompt in chunks of N, over that of the whole prompt. blocking_N_s: its longest chunk.
    gain_, latency_short, _long: throughput and time of a batch of `BATCH_SIZE` prompts over those of one (means)."""
    rng = np.random.default_rng(cell.seed)
    table = np.zeros(1, [("prompt_tokens", "i4")])
    prompt = table["prompt_tokens"][:] = rng.integers(*LONG_PROMPT)
    whole_s = float(idle_prefill_s(cell.device, table)[0])
    measured: dict[str, Any] = {}
    for chunk in CHUNKS:
        measured[f"throughput_{chunk}"] = whole_s / float(idle_prefill_s(cell.device, table, chunk)[0])
        measured[f"blocking_{chunk}_s"] = batch_s(cell.device, chunk, cached=int(prompt) // chunk * chunk - chunk)
    for name, limits in {"short": SHORT, "long": LONG}.items():
        drawn = rng.integers(*limits, PROMPTS).tolist()
        ratios = [batch_s(cell.device, tokens, BATCH_SIZE) / batch_s(cell.device, tokens) for tokens in drawn]
        measured[f"latency_{name}"] = float(np.mean(ratios))
        measured[f"gain_{name}"] = float(np.mean(BATCH_SIZE / np.array(ratios)))
    return measured


def batch_s(device: str, tokens: int, prompts: int = 1, cached: int = 0) -> float:
    """Time of a batch of equal prompts, or chunks of them."""
    batch = np.zeros(1, BATCH)
    batch["prefill_requests"], batch["longest_prefill_tokens"] = prompts, tokens
    batch["prefill_tokens"], batch["prefill_tokens_squared"] = prompts * tokens, prompts * float(tokens) ** 2
    batch["prefill_tokens_cached"], batch["prefill_cached_tokens"] = prompts * float(tokens) * cached, prompts * cached
    return float(profile(device).device.evaluate(batch)[0])


@claim(
    "flowprefill-fig3-4",
    cells=grid(("sarathi-fcfs",), (1.0,)),
    measure=measure,
    families=("flowprefill",),
    devices=("a100-llama3-8b",),
)
def judge(rows: pd.DataFrame) -> list[Check]:
    share = {chunk: values(rows, f"throughput_{chunk}") for chunk in CHUNKS}
    blocking = {chunk: values(rows, f"blocking_{chunk}_s") for chunk in (CHUNKS[0], CHUNKS[-1])}
    return [
        Check("throughput, chunks of 256 over the whole prompt", share[256], COLLAPSE),
        Check("throughput, chunks of 8192 over the whole prompt", share[8192], Range(low=0.9)),
        Check("longest chunk of 256, s", blocking[256], Range(high=TIGHT_TTFT_S)),
        Check("longest chunk of 8192, s", blocking[8192], Range(low=TIGHT_TTFT_S)),
        Check("throughput, 8 short prompts over one", values(rows, "gain_short"), GAIN),
        Check("time, 8 short prompts over one", values(rows, "latency_short"), Range(high=BATCH_SIZE / 2)),
        Check("throughput, 8 long prompts over one", values(rows, "gain_long"), NOTHING),
        Check("time, 8 long prompts over one", values(rows, "latency_long"), LINEAR),
        *(
            Check(f"throughput, chunks of {chunk} over the whole prompt", share[chunk], COLLAPSE, "other chunks")
            for chunk in CHUNKS[1:-1]
        ),
    ]

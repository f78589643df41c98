"""What is sent for a request: a body for POST /v1/completions, as vLLM reads it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np

from servegym.errors import ReplayError
from servegym.simulator.inputs.workload import Workload

PROMPTS = ("ids", "text")
FIRST_ID = 16  # below are most tokenizers' special tokens
XARGS = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "weight")
WORD = "the "  # a token of most tokenizers
OWN, SHARED = range(2)  # streams of random ids: of a request, and of a chunk that several may have


@dataclasses.dataclass(frozen=True)
class Bodies:
    """How requests are written.

    model: as the server names it. prompt: "ids" (token ids drawn by the seed, of exactly the prompt's length; equal
    chunks of a workload with prefixes are equal ids, so that a turn's prompt begins with the one before) or "text"
    (words, about as long, no two beginning alike). vocabulary: ids are drawn from 16 up to it.
    slos, priority: whether SLOs and weight go along as `vllm_xargs`, and `priority` as itself.

    Raises ReplayError for a setting that is out of range.
    """

    model: str
    prompt: str = "ids"
    vocabulary: int = 256
    slos: bool = True
    priority: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.prompt not in PROMPTS:
            raise ReplayError(f"prompt is {self.prompt!r}; it should be one of {', '.join(PROMPTS)}")
        if self.vocabulary <= FIRST_ID:
            raise ReplayError(f"vocabulary is {self.vocabulary}; it should be above {FIRST_ID}")

    def body(self, workload: Workload, index: int) -> bytes:
        """The body for a request of the workload, as JSON in UTF-8."""
        request = workload.table[index]
        document: dict[str, Any] = {
            "model": self.model,
            "prompt": self.prompt_of(workload, index),
            "max_tokens": int(request["output_tokens"]),
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.slos:
            xargs = {name: float(request[name]) for name in XARGS if math.isfinite(request[name])}
            document["vllm_xargs"] = xargs
        if self.priority:
            document["priority"] = int(request["priority"])
        if workload.turns is not None:
            document["user"] = f"session-{workload.turns.session[index]}"
        return json.dumps(document, separators=(",", ":")).encode()

    def prompt_of(self, workload: Workload, index: int) -> list[int] | str:
        """Token ids, or words."""
        length = int(workload.table["prompt_tokens"][index])
        if self.prompt == "text":
            numbered = f"{self.seed} {index} "  # so that no two prompts begin alike
            return numbered + WORD * max(0, length - 4)
        ids = drawn(self.seed, OWN, np.full(length, index), np.arange(length))
        prompts = workload.prefixes
        if prompts is not None:
            chunks = prompts.chunks[prompts.offsets[index] : prompts.offsets[index + 1]]
            place = np.arange(min(length, len(chunks) * prompts.chunk_tokens))  # tokens after it belong to its answer
            number = chunks[place // prompts.chunk_tokens]
            ids[: len(place)] = drawn(self.seed, SHARED, number, place % prompts.chunk_tokens)
        return (FIRST_ID + ids % np.uint64(self.vocabulary - FIRST_ID)).tolist()


def drawn(seed: int, stream: int, number: np.ndarray, place: np.ndarray) -> np.ndarray:
    """uint64[n]: random bits of each number and place, by SplitMix64's finaliser (Steele et al., OOPSLA 2014).

    A generator for each chunk would take a tenth of a second for a long prompt, while tokens of others come.
    """
    bits = np.full(len(place), (seed * 4 + stream) % 2**64, "u8")
    for word in (number, place):
        bits = bits + np.uint64(0x9E3779B97F4A7C15) * (word.astype("u8") + np.uint64(1))
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    return bits

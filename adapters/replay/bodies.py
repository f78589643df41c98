"""Bodies of POST /v1/completions for the requests of a workload, as vLLM reads them."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np

from servegym.errors import ReplayError
from servegym.simulator.inputs.workload import Workload

PROMPTS = ("ids", "text")
FIRST_ID = 16  # most tokenizers have special tokens below this id
XARGS = ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "weight")
WORD = "the "  # a token of most tokenizers
OWN, SHARED = range(2)  # streams of random ids: of one request, and of chunks that requests may share


@dataclasses.dataclass(frozen=True)
class Bodies:
    """Writes the bodies of requests.

    model: the server's name of it. prompt: "ids" (random token ids, exactly as many as the prompt has; equal chunks of
    a workload with prefixes get equal ids, so that a turn's prompt begins with that of the turn before) or "text"
    (words, of about the prompt's length, no two prompts with the same beginning). vocabulary: ids are drawn from 16 up
    to it.
    slos, priority: whether SLOs and weight are sent as `vllm_xargs`, and the priority as `priority`.
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
        """Write the body for a request of the workload, JSON in UTF-8."""
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
        """Make the prompt of a request: token ids, or words."""
        length = int(workload.table["prompt_tokens"][index])
        if self.prompt == "text":
            numbered = f"{self.seed} {index} "  # no two prompts have the same beginning
            return numbered + WORD * max(0, length - 4)
        ids = drawn(self.seed, OWN, np.full(length, index), np.arange(length))
        prompts = workload.prefixes
        if prompts is not None:
            chunks = prompts.chunks[prompts.offsets[index] : prompts.offsets[index + 1]]
            place = np.arange(min(length, len(chunks) * prompts.chunk_tokens))  # chunks go on into the answer
            number = chunks[place // prompts.chunk_tokens]
            ids[: len(place)] = drawn(self.seed, SHARED, number, place % prompts.chunk_tokens)
        return (FIRST_ID + ids % np.uint64(self.vocabulary - FIRST_ID)).tolist()


def drawn(seed: int, stream: int, number: np.ndarray, place: np.ndarray) -> np.ndarray:
    """uint64[n]: random bits for each number and place, by SplitMix64's finaliser (Steele et al., OOPSLA 2014).

    A NumPy generator for each chunk would take a tenth of a second for a long prompt, and tokens of other requests
    would be received late.
    """
    bits = np.full(len(place), (seed * 4 + stream) % 2**64, "u8")
    for word in (number, place):
        bits = bits + np.uint64(0x9E3779B97F4A7C15) * (word.astype("u8") + np.uint64(1))
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    return bits

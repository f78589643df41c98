"""WEKA's agentic traces, as AIPerf replays them: conversations of requests with their times and block hashes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import MAX_TOKENS
from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, Reader, reader
from servegym.traces.sessions import NO_ENDS, context_blocks, shared_context_tokens
from servegym.traces.trace import Trace

SUBAGENT = "subagent"
KINDS = ("n", "s", SUBAGENT)  # not streamed, streamed, requests of another agent
SIZES = (16, 32, 64, 128, 256, 512, 1024)  # candidates for the size of blocks if the file has none


@dataclasses.dataclass
class Turn:
    """A request: the earlier one that it follows (-1: none), the pause after the end of that one, and its blocks."""

    after: int
    think_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: list[int]


@reader
class WekaReader(Reader):
    """A conversation an object: `requests`, each with `t, in, out, type`, mostly `hash_ids`; `block_size` tokens.

    A request follows the one before it, `think_time` after its end; without think_time, the difference of their `t`
    less `api_time`, if given. A subagent's first request follows the agent's request before it, and its later ones
    follow each other, while the agent continues. Hashes are compared within a conversation only. Conversations begin at
    a rate, or when a client is free.
    """

    name = "weka"
    needs = ("requests",)
    optional = ("id", "block_size")
    size: int | None = None  # tokens of a block
    read_turns = 0

    def columns(self, chunk: Chunk) -> Columns:
        before = self.read_turns
        turns: list[Turn] = []
        conversations: list[int] = []
        for at in range(len(chunk)):
            row, first = chunk.frame.iloc[at], len(turns)
            where = f"{self.path.name}, conversation {chunk.first_row + at}"
            self._read(row["requests"], where, turns, -1)
            if len(turns) == first:
                raise WorkloadError(f"{where} has no requests")
            size = _block_size(row.get("block_size"), turns[first:], where)
            if self.size not in (None, size):
                raise WorkloadError(f"{where} has blocks of {size} tokens, and those above of {self.size}")
            self.size = size
            conversations += [chunk.first_row + at] * (len(turns) - first)
        self.read_turns += len(turns)
        return {
            "prompt_tokens": np.array([turn.prompt_tokens for turn in turns], "i4"),
            "output_tokens": np.array([turn.output_tokens for turn in turns], "i4"),
            "conversation": np.array(conversations, "i8"),
            "after": np.array([turn.after + before if turn.after >= 0 else -1 for turn in turns], "i8"),
            "think_s": np.array([turn.think_s for turn in turns]),
            "block_counts": np.array([len(turn.blocks) for turn in turns], "i8"),
            "block_ids": np.array([block for turn in turns for block in turn.blocks], "u8").view("i8"),
        }

    def _read(self, requests: Any, where: str, turns: list[Turn], begun_by: int, begun_s: float = 0.0) -> None:
        """Add the requests of an agent to `turns`. begun_by, begun_s: the request (-1: none) that started the agent,
        and when."""
        if not isinstance(requests, list | np.ndarray):
            raise WorkloadError(f"{where}: requests should be a list")
        last, last_s, api_s = begun_by, begun_s, 0.0  # the request that the next one follows
        for number, request in enumerate(requests, start=1):
            here = f"{where}, request {number}"
            kind = request.get("type") if isinstance(request, dict) else None
            if kind not in KINDS:
                raise WorkloadError(f"{here}: type is {kind!r}; it should be one of {', '.join(KINDS)}")
            time_s = _number(request, "t", here)
            if kind == SUBAGENT and request.get("requests") is not None:
                self._read(request["requests"], here, turns, last, last_s + api_s if last >= 0 else time_s)
                continue
            think_s = request.get("think_time") if kind != SUBAGENT else None
            think_s = time_s - last_s - api_s if think_s is None else _number(request, "think_time", here)
            if last >= 0 and request.get("think_time") is None and not api_s and NO_ENDS not in self.notes:
                self.notes.append(NO_ENDS)
            prompt, output = (int(_number(request, name, here, 1, MAX_TOKENS)) for name in ("in", "out"))
            turns.append(Turn(last, max(0.0, think_s) if last >= 0 else 0.0, prompt, output, _blocks(request, here)))
            if kind != SUBAGENT:
                api_s = 0.0 if request.get("api_time") is None else _number(request, "api_time", here)
                last, last_s = len(turns) - 1, time_s

    def tokens_of_a_block(self, columns: Columns) -> int | None:
        del columns
        return self.size

    def settled(self, trace: Trace) -> Trace:
        turns, blocks = SessionDependencies(self.rows["after"], self.rows["think_s"]), trace.prefix_blocks
        assert blocks is not None
        if not len(blocks.ids):
            lengths = trace.prompt_tokens, trace.output_tokens, turns.after
            blocks = context_blocks(*lengths, shared_context_tokens(*lengths))
            self.notes.append("shared prefixes are inferred from lengths: there are no hash_ids")
        else:  # blocks of different conversations differ, even with equal numbers
            conversation = np.repeat(self.rows["conversation"], np.diff(blocks.offsets))
            pairs = np.stack([conversation, blocks.ids], axis=1)
            ids = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype("i8")
            blocks = dataclasses.replace(blocks, ids=ids)
        return dataclasses.replace(trace, prefix_blocks=blocks, turns=turns)


def _block_size(given: Any, turns: list[Turn], where: str) -> int:
    """Return the size in the file, else the power of two for which all prompts have their number of blocks."""
    if given is not None and given == given:
        if not isinstance(given, int | float | np.number) or not 1 <= given <= MAX_TOKENS or given != int(given):
            raise WorkloadError(f"{where}: block_size is {given!r}; it should be a whole number of tokens")
        return int(given)
    fitting = [size for size in SIZES if all(len(turn.blocks) in (0, -(-turn.prompt_tokens // size)) for turn in turns)]
    if not fitting:
        raise WorkloadError(f"{where} has no block_size, how many tokens a block of hash_ids has")
    return fitting[-1]


def _number(request: dict[str, Any], name: str, where: str, least: int = 0, most: float = 1e8) -> float:
    value: Any = request.get(name)
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or (least and value != int(value)):
        what = "a whole number of tokens" if least else "seconds"
        raise WorkloadError(f"{where}: {name} is {value!r}; it should be {what}, {least} to {most:g}")
    return float(value)


def _blocks(request: dict[str, Any], where: str) -> list[int]:
    blocks = [] if request.get("hash_ids") is None else list(request["hash_ids"])
    if not all(isinstance(block, int | np.integer) and 0 <= block < 2**64 for block in blocks):
        raise WorkloadError(f"{where}: hash_ids should be whole numbers, 0 to {2**64 - 1}")
    return [int(block) for block in blocks]

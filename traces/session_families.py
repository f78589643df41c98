"""Families of sessions, from the tables in `quantiles/*.sessions.json`: chat, agents with sub-agents, retrieval.

Turns, lengths and pauses are drawn independently of each other; contexts grow by themselves. docs/sessions.md.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.traces import quantiles
from servegym.traces.distributions import Stream, generator
from servegym.traces.families import FAMILIES, drawn_provenance
from servegym.traces.sessions import BLOCK_TOKENS
from servegym.traces.trace import PrefixBlocks, Trace

MOST_SESSIONS_REFUSED = 1000  # in a row, by the token limits


@dataclasses.dataclass
class Call:
    """A request of a session. after: the place in the session of the one it follows. names: those of the full blocks of
    prompt and answer, by which its prompt's are known to a later one that goes on with it."""

    prompt_tokens: int
    output_tokens: int
    after: int
    think_s: float
    names: np.ndarray

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class Drawing:
    """A generator, and names for new blocks. used: names taken so far."""

    def __init__(self, table: dict[str, Any], rng: np.random.Generator, used: int = 0) -> None:
        self.table, self.rng, self.used = table, rng, used
        self.block_tokens = int(table.get("block_tokens", BLOCK_TOKENS))
        self.levels: list[float] = table["levels"]

    def one(self, values: list[float]) -> float:
        """Draw one of the distribution with these quantiles."""
        return between(self.rng.random(), self.levels, values)

    def whole(self, values: list[float], least: int = 1) -> int:
        return max(least, round(self.one(values)))

    def call(self, prompt: int, output: int, after: int, think_s: float, known: np.ndarray) -> Call:
        """Make a request whose prompt begins with blocks of these names."""
        known = known[: prompt // self.block_tokens]
        new = (prompt + output) // self.block_tokens - len(known)
        self.used += new
        return Call(prompt, output, after, think_s, np.concatenate([known, np.arange(self.used - new, self.used)]))


def between(x: float, xs: list[float], ys: list[float]) -> float:
    """`numpy.interp` of one number, in the same arithmetic: sessions are drawn number by number, and for one number
    numpy's takes many times as long."""
    at = bisect.bisect_right(xs, x) - 1
    if at < 0 or at == len(xs) - 1:
        return ys[max(at, 0)]
    if x == xs[at]:  # as numpy has it: the slope may be infinite
        return ys[at]
    slope = (ys[at + 1] - ys[at]) / (xs[at + 1] - xs[at])
    return slope * (x - xs[at]) + ys[at]


@dataclasses.dataclass(frozen=True)
class SessionFamily:
    """session: the requests of one session, drawn. used: names of blocks that all sessions share, 0, 1, ..."""

    session: Callable[[Drawing], list[Call]]
    table: dict[str, Any]
    used: int = 0

    def draw(self, family: str, requests: int, seed: int, most_prompt: float, most_total: float) -> Trace:
        """Draw sessions with `requests` requests in all; the last session is cut off. A session ends before a request
        beyond the limits. Raises WorkloadError if the limits leave nothing.
        """
        most_total = min(most_total, self.table.get("context_tokens", np.inf))
        drawing = Drawing(self.table, generator(seed, Stream.LENGTHS), self.used)
        calls: list[Call] = []
        refused = 0
        while len(calls) < requests:
            first, session = len(calls), self.session(drawing)
            fits = [call.prompt_tokens <= most_prompt and call.context_tokens <= most_total for call in session]
            session = session[: fits.index(False)] if False in fits else session
            refused = 0 if session else refused + 1
            if refused == MOST_SESSIONS_REFUSED:
                raise WorkloadError(
                    f"{family}: of {refused} sessions none begins with up to {most_prompt:g} prompt tokens and "
                    f"{most_total:g} in all"
                )
            for call in session[: requests - first]:
                call.after += first if call.after >= 0 else 0
                calls.append(call)
        size = drawing.block_tokens
        full = [call.names[: call.prompt_tokens // size] for call in calls]
        offsets = np.r_[0, np.cumsum([len(names) for names in full], dtype="i8")]
        return Trace(
            name=family,
            prompt_tokens=np.array([call.prompt_tokens for call in calls], "i4"),
            output_tokens=np.array([call.output_tokens for call in calls], "i4"),
            prefix_blocks=PrefixBlocks(offsets, np.concatenate(full).astype("i8"), size),
            provenance=drawn_provenance(family, requests, quantiles.origin_of(self.table)),
            turns=SessionDependencies(
                np.array([call.after for call in calls]), np.array([call.think_s for call in calls])
            ),
        )


def chat(drawing: Drawing) -> list[Call]:
    """A system prompt that all have, then question and answer, question and answer."""
    table, calls = drawing.table, list[Call]()
    for turn in range(drawing.whole(table["turns"])):
        new, output = drawing.whole(table["new_tokens"]), drawing.whole(table["output_tokens"])
        if turn == 0:
            common = np.arange(table["system_tokens"] // BLOCK_TOKENS)
            calls.append(drawing.call(table["system_tokens"] + new, output, -1, 0.0, common))
            continue
        last = calls[-1]
        think_s = drawing.one(table["think_s"])
        calls.append(drawing.call(last.context_tokens + new, output, turn - 1, think_s, last.names))
    return calls


def agent(drawing: Drawing) -> list[Call]:
    """An agent whose context grows. Some turns start a sub-agent with a context of its own, and the next turn comes
    when that has ended."""
    calls: list[Call] = []
    last: Call | None = None
    for _ in range(drawing.whole(drawing.table["agent"]["turns"])):
        last = _agent_turn(drawing, drawing.table["agent"], calls, last)
        if drawing.rng.random() < drawing.table["sub_agents_per_turn"]:
            sub: Call | None = None
            for _ in range(drawing.whole(drawing.table["sub_agent"]["turns"])):
                sub = _agent_turn(drawing, drawing.table["sub_agent"], calls, sub)
    return calls


def _agent_turn(drawing: Drawing, figures: dict[str, Any], calls: list[Call], last: Call | None) -> Call:
    """The turn that follows all calls so far, and goes on with the context of `last`."""
    output, think_s = drawing.whole(figures["output_tokens"]), drawing.one(figures["think_s"])
    if last is None:
        prompt, known = drawing.whole(figures["first_prompt_tokens"]), np.zeros(0, "i8")
    else:
        prompt = max(1, last.context_tokens + round(drawing.one(figures["new_tokens"])))
        kept = last.context_tokens if prompt >= last.context_tokens else last.prompt_tokens
        known = last.names[: kept // drawing.block_tokens] if prompt >= last.prompt_tokens else np.zeros(0, "i8")
    calls.append(drawing.call(prompt, output, len(calls) - 1, think_s if calls else 0.0, known))
    return calls[-1]


def retrieval(drawing: Drawing) -> list[Call]:
    """Each turn: a system prompt that all have, documents (the same for many), what changes each time, a question."""
    table, calls = drawing.table, list[Call]()
    common = np.arange(table["system_tokens"] // BLOCK_TOKENS)
    for turn in range(drawing.whole(table["turns"])):
        asked = [_document(drawing) for _ in range(drawing.whole(table["documents_a_turn"], least=0))]
        documents = list(dict.fromkeys(asked))  # each once
        known = np.concatenate([common, *(_names_of(drawing, document) for document in documents)])
        tokens = len(known) * BLOCK_TOKENS + table["changing_system_tokens"] + drawing.whole(table["new_tokens"])
        output = drawing.whole(table["output_tokens"])
        calls.append(drawing.call(tokens, output, turn - 1, drawing.one(table["think_s"]) if turn else 0.0, known))
    return calls


def _document(drawing: Drawing) -> int:
    """Draw the rank of a document, from 0, by how often each is asked for."""
    table = drawing.table
    share = between(drawing.rng.random(), [0.0, *table["draws_up_to_rank"]], [0.0, *table["rank_shares"]])
    return min(table["documents"] - 1, int(share * table["documents"]))


def _names_of(drawing: Drawing, document: int) -> np.ndarray:
    """Make the names of a document's blocks, all full; the same document has the same tokens and names."""
    level = document * 0.6180339887498949 % 1  # its length is independent of its rank
    tokens = between(level, drawing.levels, drawing.table["document_tokens"])
    most = _blocks_of_a_document(drawing.table)
    blocks = min(most, max(1, round(tokens / BLOCK_TOKENS)))
    return drawing.table["system_tokens"] // BLOCK_TOKENS + document * most + np.arange(blocks)


def _blocks_of_a_document(table: dict[str, Any]) -> int:
    return int(table["document_tokens"][-1]) // BLOCK_TOKENS + 1


def _register() -> None:
    rag, agents = (
        quantiles.table_of(family, quantiles.SESSIONS) for family in ("retrieval-sessions", "agent-sessions")
    )
    common = rag["system_tokens"] // BLOCK_TOKENS
    chat_table = rag | {"changes": rag["changes"] + "; questions and answers alone, without documents"}
    FAMILIES.register("chat-sessions")(SessionFamily(chat, chat_table, common))
    FAMILIES.register("agent-sessions")(SessionFamily(agent, agents))
    names = common + rag["documents"] * _blocks_of_a_document(rag)
    changes = rag["changes"] + "; what changes with each request is put behind the documents"
    FAMILIES.register("retrieval-sessions")(SessionFamily(retrieval, rag | {"changes": changes}, names))


_register()

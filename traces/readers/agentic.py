"""Agentic coding: conversations with the pauses between their turns, with block hashes or without."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.traces.cells import Chunk
from servegym.traces.readers.base import Columns, Reader, reader
from servegym.traces.sessions import context_blocks, ordered, shared_context_tokens
from servegym.traces.trace import Trace

FORMAT_OF = "SemiAnalysisAI/InferenceX (in ajith-sirra-amd/InferenceMAX_Rocm_Team 5988286)"


class ConversationReader(Reader):
    """Turns that follow each other, without arrivals: sessions begin at a rate, or when a client is free."""

    block_tokens = 64

    def conversations(self, trace: Trace, session: np.ndarray, turn: np.ndarray, think_s: np.ndarray) -> Trace:
        """Add the turns to a trace. A turn whose pause is not known begins a new session."""
        order = ordered(session, turn, np.zeros(len(session)))
        trace, session, think_s = trace.take(order), session[order], think_s[order]
        begins = np.r_[True, session[1:] != session[:-1]] | np.isnan(think_s)
        after = np.where(begins, -1, np.arange(len(session)) - 1)
        cut = int(begins.sum() - len(np.unique(session)))
        notes = [f"{cut} conversations go on after a pause that is not known, as sessions of their own"] if cut else []
        if trace.prefix_blocks is None:
            notes.append("shared prefixes are inferred from lengths (traces/sessions.py, shared_context_tokens)")
            kept = shared_context_tokens(trace.prompt_tokens, trace.output_tokens, after)
            blocks = context_blocks(trace.prompt_tokens, trace.output_tokens, after, kept, self.block_tokens or 64)
            trace = dataclasses.replace(trace, prefix_blocks=blocks)
        self.notes += notes
        return dataclasses.replace(trace, turns=SessionDependencies(after, think_s)).noted(format_of=FORMAT_OF)


@reader
class AgentXTurnsReader(ConversationReader):
    """`session, agent_depth, turn, prompt_tokens, output_tokens, think_s`: many conversations, without block hashes."""

    name = "agentx-turns"
    needs = ("session", "agent_depth", "turn", "prompt_tokens", "output_tokens", "think_s")

    def columns(self, chunk: Chunk) -> Columns:
        return {
            "prompt_tokens": chunk.lengths("prompt_tokens"),
            "output_tokens": chunk.lengths("output_tokens"),
            "session": chunk.codes("session"),
            "turn": chunk.codes("turn"),
            "think_s": think_times(chunk),
            "application": chunk.codes("agent_depth"),
        }

    def settled(self, trace: Trace) -> Trace:
        return self.conversations(trace, self.rows["session"], self.rows["turn"], self.rows["think_s"])


@reader
class AgentXHashedReader(ConversationReader):
    """`turn, t_s, prompt_tokens, output_tokens, think_s, hash_ids`: one conversation, with blocks of 64 tokens."""

    name = "agentx-hashed"
    needs = ("turn", "t_s", "prompt_tokens", "output_tokens", "think_s", "hash_ids")

    def columns(self, chunk: Chunk) -> Columns:
        counts, ids = chunk.ids("hash_ids")
        return {
            "prompt_tokens": chunk.lengths("prompt_tokens"),
            "output_tokens": chunk.lengths("output_tokens"),
            "turn": chunk.codes("turn"),
            "think_s": think_times(chunk),
            "block_counts": counts,
            "block_ids": ids,
        }

    def settled(self, trace: Trace) -> Trace:
        turn = self.rows["turn"]
        if len(np.unique(turn)) < len(turn):
            raise WorkloadError(f"{self.path.name} has a turn twice; it is one conversation, with each turn once")
        return self.conversations(trace, np.zeros(len(turn), "i8"), turn, self.rows["think_s"])


def think_times(chunk: Chunk) -> np.ndarray:
    """float64[rows]: seconds, NaN where there is none."""
    right = "seconds of 0 or more, or empty"
    seconds = chunk.numbers("think_s", right, np.nan)
    chunk.check("think_s", (seconds < 0) | np.isinf(seconds), right)
    return seconds

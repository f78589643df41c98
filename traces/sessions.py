"""Sessions: turns that follow each other, and what their prompts share. docs/sessions.md, "Files".

The context of a turn is its prompt and, once it has ended, its answer. The next turn's prompt begins with it, as far as
it has not been shortened; so its blocks have the names that the context's have.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.traces.trace import PrefixBlocks, Trace

BLOCK_TOKENS = 16  # tokens of a block of a context; vLLM's default
NO_ENDS = "a turn comes as long after the last one's end as it arrived after its arrival: ends are not recorded"


def shared_context_tokens(prompt_tokens: np.ndarray, output_tokens: np.ndarray, after: np.ndarray) -> np.ndarray:
    """int64[requests]: how many leading tokens each prompt shares with the context of the turn before it, judged by
    lengths.

    All of the context, if the prompt is at least as long; the last prompt only, if it is at least that long but shorter
    than the context (answers are shortened: reasoning is dropped); none, if it is shorter than the last prompt (the
    context was rebuilt).
    """
    before = np.maximum(after, 0)
    prompt, context = prompt_tokens[before].astype("i8"), prompt_tokens[before].astype("i8") + output_tokens[before]
    kept = np.where(prompt_tokens >= context, context, np.where(prompt_tokens >= prompt, prompt, 0))
    return np.where(after < 0, 0, kept)


def context_blocks(
    prompt_tokens: np.ndarray,
    output_tokens: np.ndarray,
    after: np.ndarray,
    kept: np.ndarray,
    block_tokens: int = BLOCK_TOKENS,
    common: np.ndarray | None = None,
) -> PrefixBlocks:
    """Name the full blocks of each prompt. Each request follows one above it (after: -1: none), and its prompt begins
    with `kept` tokens of that one's context.

    common: int64[requests], how many tokens prompts that follow none begin with alike (a system prompt); None: none.
    """
    contexts: list[np.ndarray] = []  # names of the full blocks of prompt and answer, for each request
    used = 0 if common is None else int(common.max(initial=0)) // block_tokens
    for r in range(len(after)):
        blocks = int(prompt_tokens[r] + output_tokens[r]) // block_tokens
        if after[r] >= 0:
            old = contexts[after[r]][: int(kept[r]) // block_tokens]
        else:
            old = np.arange(0 if common is None else int(common[r]) // block_tokens)
        old = old[: int(prompt_tokens[r]) // block_tokens]
        contexts.append(np.r_[old, np.arange(used, used + blocks - len(old))])
        used += blocks - len(old)
    full = [names[: int(tokens) // block_tokens] for names, tokens in zip(contexts, prompt_tokens, strict=True)]
    offsets = np.r_[0, np.cumsum([len(names) for names in full], dtype="i8")]
    return PrefixBlocks(offsets, np.concatenate([*full, np.zeros(0, "i8")]).astype("i8"), block_tokens)


def in_sessions(trace: Trace, after: np.ndarray, think_s: np.ndarray) -> Trace:
    """Make a trace whose requests, in order of arrival, follow others above them (int64[requests], -1: none); as it is
    where none does. Each session's are in a row then; without prefix blocks lengths say what prompts share."""
    if (after < 0).all():
        return trace
    turns = SessionDependencies(after, think_s)
    trace = dataclasses.replace(trace, turns=turns).take(np.argsort(turns.session, kind="stable"))
    assert trace.turns is not None
    blocks = trace.prefix_blocks
    if blocks is None:
        prompt, output, after = trace.prompt_tokens, trace.output_tokens, trace.turns.after
        blocks = context_blocks(prompt, output, after, shared_context_tokens(prompt, output, after))
    arrival_s = None if trace.arrival_s is None else np.where(trace.begins, trace.arrival_s, np.nan)
    return dataclasses.replace(trace, arrival_s=arrival_s, prefix_blocks=blocks)


def ordered(session: np.ndarray, turn: np.ndarray, time_s: np.ndarray) -> np.ndarray:
    """Order rows by session, each session with its turns in order: int64[rows].

    time_s: float64[rows], NaN if not known; a session begins at the earliest time of its rows. Sessions that begin at
    the same time, or at none that is known, stay in the order in which they appear.
    """
    _, index, codes = np.unique(session, return_index=True, return_inverse=True)
    begins_s = np.full(len(index), np.inf)
    np.fmin.at(begins_s, codes, time_s)
    return np.lexsort((turn, index[codes], begins_s[codes]))


def linked(file: str, session: np.ndarray, turn: np.ndarray, follows: np.ndarray) -> np.ndarray:
    """int64[rows]: the row that each one follows, -1: none. Rows are as `ordered` has them.

    follows: float64[rows], the number of the turn it follows, NaN: the one before. Raises WorkloadError for a turn that
    is there twice, and for one that follows none above it.
    """
    begins = np.r_[True, session[1:] != session[:-1]]
    twice = ~begins & (turn == np.r_[0, turn[:-1]])
    if twice.any():
        at = int(np.argmax(twice))
        raise WorkloadError(f"{file}: session {session[at]} has turn {turn[at]} twice; a turn is there once")
    rows = np.arange(len(session))
    after = np.where(begins, -1, rows - 1)
    first = np.maximum.accumulate(np.where(begins, rows, 0))
    for at in np.flatnonzero(~np.isnan(follows)).tolist():
        place = first[at] + int(np.searchsorted(turn[first[at] : at], follows[at]))
        if place >= at or turn[place] != follows[at]:
            raise WorkloadError(
                f"{file}: turn {turn[at]} of session {session[at]} follows turn {follows[at]:g}; it should follow an "
                "earlier turn of its session"
            )
        after[at] = place
    return after

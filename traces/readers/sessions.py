"""Sessions in servegym's own format: turns that arrive after the end of another. docs/sessions.md, "Files"."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.errors import WorkloadError
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import MAX_TOKENS
from servegym.traces.cells import Chunk
from servegym.traces.readers.base import LONGEST_SPAN_S, Columns, check_span, reader
from servegym.traces.readers.own import OwnReader
from servegym.traces.reading import UNITS
from servegym.traces.sessions import BLOCK_TOKENS, context_blocks, linked, ordered, shared_context_tokens
from servegym.traces.trace import PrefixBlocks, Trace

LONGEST_THINK_S = LONGEST_SPAN_S


@reader
class SessionsReader(OwnReader):
    """`session, turn, output_tokens`, and prompt_tokens (the whole prompt) or new_tokens (its new part).

    session: a whole number or a name. turn: a whole number, unique in its session. think_s: seconds from the end of the
    turn that it follows to its arrival; needed for all but the first turn. after: the turn that it follows; empty: the
    one before. arrival_s: of the session, on its first turn only. shared_tokens: how many tokens of the context of the
    turn that it follows its prompt begins with; empty: all of them, or as many as lengths allow
    (`sessions.shared_context_tokens`). prefix_blocks, prefix_block_tokens: as in `OwnReader`; without them, blocks of
    16 tokens are named by what turns share. All other columns of `OwnReader` are read too.
    """

    name = "sessions"
    needs = ("session", "turn", "output_tokens")
    optional = (*OwnReader.optional, "prompt_tokens", "new_tokens", "think_s", "after", "shared_tokens")

    def columns(self, chunk: Chunk) -> Columns:
        whole = [name for name in ("prompt_tokens", "new_tokens") if name in chunk]
        if len(whole) != 1:
            raise WorkloadError(
                f"{self.path.name} has {' and '.join(whole) or 'neither prompt_tokens nor new_tokens'}; a file of "
                "sessions has one of prompt_tokens (all of the context) and new_tokens (what is new in it)"
            )
        if self.reading.drop_empty:
            raise WorkloadError(f"{self.path.name} has sessions, of which a turn cannot be dropped (--drop-empty)")
        columns = {"prompt_tokens": chunk.lengths(whole[0]), "output_tokens": chunk.lengths("output_tokens")}
        columns |= self.more_columns(chunk)
        columns["session"] = self.labels.codes(chunk, "session")
        columns["turn"] = chunk.codes("turn")
        columns["are_new"] = np.full(len(chunk), whole[0] == "new_tokens")
        columns["think_s"] = self._times(chunk, "think_s")
        if self.reading.time_unit is None or "arrival_s" not in chunk:
            columns["begins_s"] = self._times(chunk, "arrival_s", " (--time-unit says what counts from elsewhere)")
        else:
            columns["begins_s"] = chunk.numbers("arrival_s", f"a number of {self.reading.time_unit}, or empty", np.nan)
        columns["after"] = self._whole(chunk, "after")
        columns["shared_tokens"] = self._whole(chunk, "shared_tokens")
        return columns

    @staticmethod
    def _times(chunk: Chunk, name: str, hint: str = "") -> np.ndarray:
        """Read seconds, float64[rows]; NaN for an empty cell."""
        if name not in chunk:
            return np.full(len(chunk), np.nan)
        right = f"seconds, 0 to {LONGEST_THINK_S:g}, or empty{hint}"
        seconds = chunk.numbers(name, right, np.nan)
        chunk.check(name, (seconds < 0) | (seconds > LONGEST_THINK_S), right)
        return seconds

    @staticmethod
    def _whole(chunk: Chunk, name: str) -> np.ndarray:
        """Read whole numbers, float64[rows]; NaN for an empty cell."""
        if name not in chunk:
            return np.full(len(chunk), np.nan)
        right = "a whole number of 0 or more, or empty"
        numbers = chunk.numbers(name, right, np.nan)
        chunk.check(name, (numbers < 0) | (numbers != np.floor(numbers)) & ~np.isnan(numbers), right)
        return numbers

    def check_blocks(self, blocks: PrefixBlocks, prompt_tokens: np.ndarray) -> None:
        if not self.rows["are_new"][0]:
            super().check_blocks(blocks, prompt_tokens)

    def settled(self, trace: Trace) -> Trace:
        session, turn = self.rows["session"], self.rows["turn"]
        if self.reading.time_unit is not None and np.isfinite(self.rows["begins_s"]).any():
            since_first = self.rows["begins_s"] - np.nanmin(self.rows["begins_s"])
            self.rows["begins_s"] = since_first / UNITS[self.reading.time_unit]
            check_span(self.path.name, float(np.nanmax(self.rows["begins_s"])))
        order = ordered(session, turn, self.rows["begins_s"])
        rows = {name: column[order] for name, column in self.rows.items() if len(column) == len(order)}
        trace = trace.take(order)
        after = linked(self.path.name, rows["session"], rows["turn"], rows["after"])
        self._check(rows, "think_s", np.isnan(rows["think_s"]) & (after >= 0), "seconds: it follows another turn")
        timed = ~np.isnan(rows["begins_s"])
        self._check(rows, "begins_s", timed & (after >= 0), "empty: it arrives when another turn has ended")
        if timed.any():
            self._check(rows, "begins_s", ~timed & (after < 0), "seconds, as other sessions have")
        rows["prompt_tokens"], kept = self._prompts(rows, after)
        right = f"at most {MAX_TOKENS} tokens, with the context that it continues"
        self._check(rows, "prompt_tokens", rows["prompt_tokens"] > MAX_TOKENS, right)
        blocks = trace.prefix_blocks
        if blocks is None:
            blocks = context_blocks(rows["prompt_tokens"], trace.output_tokens, after, kept, BLOCK_TOKENS)
        return dataclasses.replace(
            trace,
            prompt_tokens=rows["prompt_tokens"].astype("i4"),
            arrival_s=np.where(after < 0, rows["begins_s"], np.nan) if timed.any() else None,
            labels={field: names for field, names in trace.labels.items() if field != "session"},
            prefix_blocks=blocks,
            turns=SessionDependencies(after, rows["think_s"]),
        )

    def _prompts(self, rows: Columns, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of each prompt, and how many of them are shared with the context before, int64[rows]."""
        prompt, output = rows["prompt_tokens"].astype("i8"), rows["output_tokens"].astype("i8")
        shared, before = rows["shared_tokens"], np.maximum(after, 0)
        is_shared = ~np.isnan(shared) & (after >= 0)
        if rows["are_new"][0]:
            kept = np.zeros(len(prompt), "i8")
            for r in np.flatnonzero(after >= 0).tolist():  # each after the one that it follows
                context = prompt[after[r]] + output[after[r]]
                kept[r] = min(context, int(shared[r])) if is_shared[r] else context
                prompt[r] += kept[r]
        else:
            kept = shared_context_tokens(prompt, output, after)
        most = np.minimum(prompt, prompt[before] + output[before])
        self._check(
            rows, "shared_tokens", is_shared & (shared > most), "no more than the prompt and the context before"
        )
        return prompt, np.where(is_shared, np.nan_to_num(shared), kept).astype("i8")

    def _check(self, rows: Columns, name: str, bad: np.ndarray, right: str) -> None:
        """Raise WorkloadError for the first row where `bad`, bool[rows], is true."""
        if bad.any():
            at = int(np.argmax(bad))
            shown = "empty" if np.isnan(rows[name][at]) else f"{rows[name][at]:g}"
            name = "arrival_s" if name == "begins_s" else name
            raise WorkloadError(
                f"{self.path.name}: turn {rows['turn'][at]} of session {self._session(rows, at)}: {name} is {shown}; "
                f"it should be {right}"
            )

    def _session(self, rows: Columns, at: int) -> str:
        """Return the file's name of the session of a row."""
        names = self.labels.by_column().get("session")
        return str(rows["session"][at] if names is None else names[rows["session"][at]])

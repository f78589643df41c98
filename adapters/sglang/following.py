"""Keeps the mirror, which the policy reads, up to date with SGLang's requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from servegym.adapters.vllm.decision import Decisions


def scheduled_tokens(batch: Any) -> list[tuple[Any, int, int]]:
    """(request, tokens, computed tokens after the batch) of a batch that is about to run."""
    if batch.forward_mode.is_decode():
        return [(req, 1, len(req.origin_input_ids) + len(req.output_ids)) for req in batch.reqs]
    # In a mixed batch these lists have all its requests, the decodes last.
    return [
        (req, int(tokens), int(before + tokens))
        for req, before, tokens in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
    ]


class Follower:
    """Rows of the mirror for SGLang's requests, by rid."""

    def __init__(self, decisions: Decisions, most_context_tokens: int):
        self.decisions, self.mirror, self.most_context_tokens = decisions, decisions.mirror, most_context_tokens
        self.row_of: dict[str, int] = {}
        self.req_of: dict[int, Any] = {}
        self.delivered: dict[int, int] = {}  # row -> output tokens so far
        self.arrived_s: dict[str, float] = {}  # rid -> arrival, of requests that came since the last batch
        self.under_way: tuple[float, float, float] | None = None  # the running batch's start_s, estimate_s and scale

    def meet(self, reqs: Iterable[Any], now_s: float) -> None:
        """Update the rows to these requests: add new ones, and remove missing ones, which were aborted."""
        present = {req.rid: req for req in reqs if not req.finished()}
        gone = [row for rid, row in self.row_of.items() if self.req_of[row] is not present.get(rid)]
        self._leave(gone, finished=False)
        for rid, req in present.items():
            if rid not in self.row_of:
                self._enter(req, self.arrived_s.get(rid, now_s))
        self.arrived_s.clear()

    def _enter(self, req: Any, arrival_s: float) -> None:
        prompt, most = len(req.origin_input_ids), req.sampling_params.max_new_tokens
        terms = self.decisions.reader.read(req.sampling_params.custom_params, req.priority or 0)
        if terms.malformed:
            self.decisions.metrics.add("malformed_xargs", terms.malformed)
        most = max(1, min(most or 1, self.most_context_tokens - prompt))
        row = self.mirror.add(arrival_s, prompt, most, req.priority or 0, terms)
        self.row_of[req.rid], self.req_of[row], self.delivered[row] = row, req, 0
        self.mirror.join(row)

    def _leave(self, rows: list[int], finished: bool) -> None:
        if not rows:
            return
        self.mirror.leave(rows, finished)
        for row in rows:
            del self.row_of[self.req_of.pop(row).rid], self.delivered[row]

    def ran_out(self, waiting: Iterable[Any]) -> list[int]:
        """Return the rows of waiting requests that have blocks in the mirror, as SGLang has retracted them."""
        blocks = self.mirror.run.requests["blocks"]
        return [row for req in waiting if (row := self.row_of.get(req.rid, -1)) >= 0 and blocks[row] > 0]

    def scheduled(self, batch: Any, evicted: list[int], now_s: float) -> dict[int, int]:
        """Update the mirror with a batch that is about to run and the rows evicted for it; returns tokens by row."""
        scheduled = [] if batch is None else scheduled_tokens(batch)
        scheduled = [one for one in scheduled if one[0].rid in self.row_of]
        rows = [self.row_of[req.rid] for req, _, _ in scheduled]
        estimate_s, scale = self.mirror.settle(
            np.array(evicted, "i4"),
            np.array(rows, "i4"),
            np.array([tokens for _, tokens, _ in scheduled], "i4"),
            np.array([computed for _, _, computed in scheduled], "i4"),
            np.array([len(req.output_ids) for req, _, _ in scheduled], "i4"),
            now_s,
        )
        self.under_way = (now_s, estimate_s, scale) if rows else None
        return {row: tokens for row, (_, tokens, _) in zip(rows, scheduled, strict=True)}

    def ended(self, batch: Any, now_s: float) -> None:
        """Update the mirror with the end of a batch: its tokens, and the requests that finished."""
        rows = [self.row_of[req.rid] for req in batch.reqs if req.rid in self.row_of]
        out = [len(self.req_of[row].output_ids) for row in rows]
        new = [count - self.delivered[row] for row, count in zip(rows, out, strict=True)]
        if self.under_way is not None:
            start_s, estimate_s, scale = self.under_way
            self.mirror.correct(estimate_s, scale, now_s - start_s)
        self.mirror.deliver(np.array(rows, "i4"), np.array(new, "i4"), np.array(out, "i4"), now_s)
        self.decisions.metrics.add("tokens", float(sum(new)))
        self.delivered |= dict(zip(rows, out, strict=True))
        self._leave([row for row in rows if self.req_of[row].finished()], finished=True)

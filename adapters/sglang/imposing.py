"""Makes SGLang's own code form a planned batch: which requests are admitted, with how many tokens, and which are
retracted. Written for SGLang 0.5.23 (managers/scheduler.py, managers/schedule_policy.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=4)
def adder_class(base: type) -> Any:
    """Make a subclass of SGLang's PrefillAdder that admits the tokens in `tokens_of` (by rid), whatever its budgets."""
    from sglang.srt.managers.schedule_policy import AddReqResult, _PrefillAdmission

    class Adder(base):
        tokens_of: Mapping[str, int] = {}
        parked = False  # True: the partly computed prompt is not scheduled now

        def budget_state(self) -> Any:
            return AddReqResult.CONTINUE

        def _fitting(self, req: Any, tokens: int) -> int:
            """Return the most of `tokens` that the request has left, that memory allows, and that end at a page."""
            wanted = min(tokens, len(req.full_untruncated_fill_ids) - req.prefix_len)
            fitting = min(wanted, int(self.cur_rem_tokens))
            if req.prefix_len + fitting < len(req.full_untruncated_fill_ids):  # a cut ends at the end of a page
                fitting -= (req.prefix_len + fitting) % self.page_size
            return fitting

        def add_chunked_req(self, req: Any) -> Any:
            tokens = self._fitting(req, self.tokens_of.get(req.rid, 0))
            if tokens <= 0:
                self.parked = True
                return req
            req.extend_end = req.prefix_len + tokens
            self.can_run_list.append(req)
            self._update_prefill_budget(0, tokens, 0, req.retracted_stain, is_chunked_continuation=True)
            return req if req.extend_end < len(req.full_untruncated_fill_ids) else None

        def add_one_req(self, req: Any, has_chunked_req: bool, truncation_align_size: int | None) -> Any:
            if req.rid not in self.tokens_of:
                return AddReqResult.OTHER  # the requests behind it are not planned either
            with self._lock_node(req.last_node):
                tokens = self._fitting(req, self.tokens_of[req.rid])
                whole = req.prefix_len + tokens >= len(req.full_untruncated_fill_ids)
                if tokens <= 0 or (not whole and (has_chunked_req or self.new_chunked_req is not None)):
                    return AddReqResult.CONTINUE  # SGLang computes one prompt at a time in chunks: skip this one
                self._commit_prefill_admission(req, _PrefillAdmission(req.prefix_len, tokens, 0, not whole, 0), 0)
            return AddReqResult.CONTINUE

    return Adder


def with_one_cut(wanted: Mapping[str, int], left_of: Mapping[str, int], cut: str | None) -> dict[str, int]:
    """Change a plan so that at most one prompt is computed in part, as SGLang requires.

    wanted: tokens by rid, in the order of the plan. left_of: prompt tokens that each request has left to compute. cut:
    rid of the prompt that is computed in part already. Until it is done, it gets the tokens of other partial prompts.
    """
    parts = [rid for rid, tokens in wanted.items() if tokens < left_of.get(rid, 0)]
    if cut is not None and wanted.get(cut, 0) < left_of[cut]:
        holder = cut
    elif parts:
        holder = parts[0]
    else:
        return dict(wanted)
    others = [rid for rid in parts if rid != holder]
    moved = wanted.get(holder, 0) + sum(wanted[rid] for rid in others)
    done = {rid: tokens for rid, tokens in wanted.items() if rid not in others and rid != holder}
    return done | ({holder: min(moved, left_of[holder])} if moved else {})


def retract(scheduler: Any, running_batch: Any, rids: set[str]) -> None:
    """Retract these decodes, so that they free their memory and wait."""
    keep: list[int] = []
    victims: list[int] = []
    for index, req in enumerate(running_batch.reqs):
        (victims if req.rid in rids and not req.finished() else keep).append(index)
    if not victims:
        return
    reqs = [running_batch.reqs[index] for index in victims]
    for number, index in enumerate(victims):
        running_batch.release_req(index, len(running_batch.reqs) - number - 1)
    running_batch.filter_batch(keep_indices=keep)
    for req in reqs:
        scheduler._add_request_to_queue(req, is_retracted=True)


def put_first(waiting: list[Any], rids: list[str]) -> list[Any]:
    """Return the queue with the requests of `rids` in front, in this order."""
    place = {rid: number for number, rid in enumerate(rids)}
    return sorted(waiting, key=lambda req: place.get(req.rid, len(place)))

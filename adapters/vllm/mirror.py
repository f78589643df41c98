"""A mirror of one vLLM engine in the simulator's arrays, which a policy reads; it is updated with every change.

A request has a row in the arrays from its arrival to its end. `plan` asks the policy and the simulator's packer for the
batch that they would form now, and the caller reports what vLLM scheduled (`settle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from servegym.adapters.vllm import kernels
from servegym.adapters.vllm.mirror_arrays import MirrorArrays, ParkedMirror
from servegym.adapters.vllm.terms import MOST_GROUPS, Terms
from servegym.errors import PolicyError
from servegym.simulator.compilation.failures import Failure, call
from servegym.simulator.features.disturbances import Correction, Disturbance
from servegym.simulator.inputs.deployment import Deployment, EstimatorModel
from servegym.simulator.policies.compile_errors import ensure_compiled
from servegym.simulator.policies.gains import tdg
from servegym.simulator.policies.policy import Policy
from servegym.simulator.policies.refusals import what_is_wrong
from servegym.simulator.records import types as layout
from servegym.simulator.records.fields import fresh, longer, zeros
from servegym.simulator.records.requests import begin_requests
from servegym.simulator.records.signatures import StateTables
from servegym.simulator.records.state import Functions, SimulationState
from servegym.simulator.runs.arrays import engines_state, of_kinds, state_sizes
from servegym.simulator.runs.engine_arrays import fresh_engines

FIRST_ROWS = 512  # initial number of rows; doubled whenever all are taken


class Plan(NamedTuple):
    """The batch that the policy wants.

    rows, tokens: int32[n], in the order in which the packer took the requests. cached: int32[n], their computed tokens
    before the step, prefix-cache hits included. evicted: rows of the victims, in that order. reserve_context,
    watermark_blocks: the rules of admission that the packer applied.
    """

    rows: np.ndarray
    tokens: np.ndarray
    cached: np.ndarray
    evicted: np.ndarray
    reserve_context: bool
    watermark_blocks: int

    def differs_by(self, rows: np.ndarray, tokens: np.ndarray, cached: np.ndarray) -> tuple[int, int]:
        """Compare a step with the plan, each int32[n]. Returns the number of tokens by which it differs, and the number
        of its requests with other `cached` tokens.
        """
        if np.array_equal(rows, self.rows):  # the usual case: even the order is the plan's
            return int(np.abs(tokens - self.tokens).sum()), int(np.count_nonzero(cached != self.cached))
        planned, had = (dict(zip(self.rows.tolist(), n.tolist(), strict=True)) for n in (self.tokens, self.cached))
        done = dict(zip(rows.tolist(), tokens.tolist(), strict=True))
        off = sum(abs(planned.get(row, 0) - done.get(row, 0)) for row in planned.keys() | done.keys())
        return off, sum(had.get(row, n) != n for row, n in zip(rows.tolist(), cached.tolist(), strict=True))


NO_ROWS = np.zeros(0, "i4")


class Mirror:
    """The arrays of one engine under a scheduling policy.

    numbers: float64[...], from `Policy.numbers`. total_blocks: KV blocks of the engine, of block_tokens tokens each.
    watermark_blocks: left free by vLLM at an admission. correction: of the estimator; None: not corrected.
    chunks: whether the engine has chunked prefill.
    """

    spare_blocks = 2  # block ids for each block, as requests that share a prefix have an id each for the same block

    def __init__(
        self,
        policy: Policy,
        numbers: np.ndarray,
        estimator: EstimatorModel,
        total_blocks: int,
        block_tokens: int,
        watermark_blocks: int = 0,
        correction: Correction | None = None,
        first_token_weight: float = 1.0,
        chunks: bool = True,
    ):
        self.policy, self.total_blocks, self.first_token_weight = policy, total_blocks, first_token_weight
        self.chunks = chunks
        self.ids = self.spare_blocks * total_blocks
        self.free_rows: list[int] = []
        self.sums = np.zeros(4)  # gain, ideal gain, tokens on time, tokens delivered
        for function in (policy.function, policy.victims):
            ensure_compiled(f"scheduler {policy.label}", function)
        self.functions = Functions(
            of_kinds([policy.function.value]),
            of_kinds([policy.victims.value]),
            of_kinds([estimator.batch_s.value]),
            of_kinds([estimator.batch_s.value]),
            of_kinds([estimator.exec_s.value]),
            tdg.value,
        )
        self._parked = ParkedMirror()
        pool = Deployment(estimator, estimator, total_blocks, block_tokens=block_tokens, name="vLLM's engine")
        self.run = _fresh(pool, policy, numbers, correction)
        engine = self.run.engines[0]
        engine.free_blocks, engine.watermark_blocks = self.ids, watermark_blocks
        self.most_output_tokens = np.zeros(0, "i4")
        self.delivered = np.zeros(0, "i4")
        self.barred, self.any_barred = np.zeros(0, "i4"), False  # 1: vLLM would not admit the request now
        self._make_rows(FIRST_ROWS)

    def decide_by(self, functions: Functions) -> None:
        """Plan with these functions from now on."""
        self.functions = functions
        self._park()

    @property
    def queue_length(self) -> int:
        """Number of requests in the queue, waiting and running."""
        return int(self.run.engines["queue_length"][0])

    @property
    def estimate_scale(self) -> float:
        """The present factor on the estimator's fit."""
        return float(self.run.engines["estimate_scale"][0])

    def add(self, arrival_s: float, prompt_tokens: int, most_output_tokens: int, priority: int, terms: Terms) -> int:
        """Add a request that has arrived and return its row; plans ignore it until it joins the queue."""
        if not self.free_rows:
            self._make_rows(2 * len(self.run.requests))
        row = self.free_rows.pop()
        record = np.zeros(1, layout.REQUEST)
        record["arrival_s"], record["prompt_tokens"] = arrival_s, prompt_tokens
        record["first_token_gain"] = terms.weight * self.first_token_weight
        record["decode_token_gain"] = record["weight"] = terms.weight
        for name in ("ttft_slo_s", "tpot_slo_s", "ttlt_slo_s", "predicted_output_tokens", "urgency", "session_tokens"):
            record[name] = getattr(terms, name)
        record["priority"] = max(-(2**31), min(2**31 - 1, priority))
        record["client"], record["application"] = terms.client, terms.application
        begin_requests(record)
        self.run.requests[row] = record[0]
        self.run.outcomes[row] = np.zeros(1, layout.OUTCOME)[0]
        if len(self.run.state.requests):
            self.run.state.requests[row] = 0.0
        self.most_output_tokens[row] = min(most_output_tokens, 2**31 - 1)
        self.delivered[row] = self.barred[row] = 0
        return row

    def join(self, row: int) -> None:
        """Append the request to the queue."""
        engine, state, request = self.run.engines[0], self.run.state, self.run.requests[row]
        self.run.queues[0, engine.queue_length] = row
        engine.queue_length += 1
        request.engine = 0
        if state.by_client.size:
            state.by_client["queued"][0, request.client] += 1
        if state.by_application.size:
            state.by_application["queued"][0, request.application] += 1

    def plan(
        self,
        now_s: float,
        free_blocks: int,
        most_tokens: int,
        most_chunk_tokens: int,
        max_num_seqs: int,
        under_way: bool = False,
    ) -> Plan | None:
        """Form the batch that the policy wants now; None: no request can run.

        free_blocks: as vLLM counts them. most_...: vLLM's own limits. under_way: whether a step is; it counts as done,
        and the batch may then be empty (docs/feature_rules.md). Raises PolicyError if the policy raises an exception or
        writes invalid ranks or limits; ArithmeticError if the estimator can no longer be corrected.
        """
        if self._engine_free[0] < free_blocks:
            self._make_ids(free_blocks - int(self._engine_free[0]))
        failures: list[Failure] = []
        status = call(
            failures.append, kernels.plan_batch.entry, self._parked.address, now_s, free_blocks, most_tokens,
            most_chunk_tokens, max_num_seqs, under_way,
        )  # fmt: skip
        evicted = self._evicted() if self._evictions[1][0] > self._evictions[0][0] else NO_ROWS
        if failures:
            raise PolicyError(str(failures[0]))
        if status == kernels.REFUSED:
            n, scratch = self.queue_length, self.scratch
            raise PolicyError(f"it {what_is_wrong(scratch.limits[0], scratch.ranks[:n], scratch.queues[0, :n])}")
        if status == kernels.BAD_CORRECTION:
            raise ArithmeticError(f"steps took {self.estimate_scale} times what its estimator was fitted to")
        if status == kernels.NOTHING:
            return Plan(NO_ROWS, NO_ROWS, NO_ROWS, evicted, False, 0) if under_way else None
        length = int(self._packed[0])
        rows = self._entry_rows[:length].copy()
        return Plan(
            rows,
            self._entry_tokens[:length].copy(),
            self._computed[rows],
            evicted,
            bool(self._reserve_context[0]),
            int(self._watermark_blocks[0]),
        )

    def settle(
        self,
        evicted: np.ndarray,
        rows: np.ndarray,
        tokens: np.ndarray,
        computed: np.ndarray,
        emitted: np.ndarray,
        now_s: float,
    ) -> tuple[float, float]:
        """Update the mirror with what vLLM scheduled (int32 arrays; computed, emitted: tokens after the step, those
        under way included).

        Returns the estimated time of that batch and the factor that it includes, for `correct`.
        """
        most = int(computed.sum()) // int(self.run.engines["block_tokens"][0]) + len(rows)
        if self._engine_free[0] < most:
            self._make_ids(most)
        kernels.settle_batch.entry(self._parked.address, evicted, rows, tokens, computed, emitted, now_s)
        engine = self.run.engines[0]
        return float(engine.batch_estimate_s), float(engine.correction.batch_scale)

    def count_on(self, rows: list[int], emitted: list[int]) -> None:
        """Set the output tokens of requests, those under way included."""
        self.run.requests["num_output_tokens"][rows] = emitted

    def bar(self, rows: list[int]) -> None:
        """Exclude exactly these requests from plans for now."""
        if rows or self.any_barred:
            self.barred[:] = 0
            self.barred[rows] = 1
            self.any_barred = bool(rows)

    def recount(self, rows: list[int], computed: list[int]) -> None:
        """Set the computed tokens of requests whose rejected draft tokens had been counted."""
        self.run.requests["computed_tokens"][rows] = computed

    def correct(self, estimate_s: float, scale: float, real_s: float) -> None:
        """Correct the estimator with a step that took real_s seconds; estimate_s and scale are those of `settle`."""
        kernels.correct_by_step.entry(self._parked.address, estimate_s, scale, real_s)

    def deliver(self, rows: np.ndarray, new_tokens: np.ndarray, emitted: np.ndarray, now_s: float) -> None:
        """Count delivered tokens and their gain (int32 arrays). emitted: output tokens with those under way."""
        kernels.deliver_tokens.entry(self._parked.address, rows, new_tokens, emitted, now_s)

    def leave(self, rows: Sequence[int], finished: bool) -> None:
        """Remove requests, finished or aborted, and free their rows."""
        kernels.leave.entry(self._parked.address, np.array(rows, "i4"), finished)
        self.free_rows.extend(rows)

    def _evicted(self) -> np.ndarray:
        """Return the rows of the plan's victims, in the order of their eviction."""
        before = self._evictions[0][0]
        rows = self.scratch.queues[0][: self.scratch.engines["queue_length"][0]]
        numbers = self.scratch.requests["evicted"][rows]
        taken = np.flatnonzero(numbers > before)
        return rows[taken[np.argsort(numbers[taken])]].copy()

    def _make_rows(self, count: int) -> None:
        """Enlarge the arrays to `count` rows."""
        had, keeps_numbers = len(self.most_output_tokens), self.run.state.requests.shape[1] > 0
        sizes = {"requests": count, "capacity": count} | ({"state_requests": count} if keeps_numbers else {})
        self.run = longer(self.run, sizes)
        self.most_output_tokens = np.concatenate([self.most_output_tokens, np.zeros(count - had, "i4")])
        self.delivered = np.concatenate([self.delivered, np.zeros(count - had, "i4")])
        self.barred = np.concatenate([self.barred, np.zeros(count - had, "i4")])
        self.free_rows.extend(range(count - 1, had - 1, -1))
        self._see()

    def _make_ids(self, more: int) -> None:
        """Add block ids, when prompts share more blocks than `spare_blocks` allows for."""
        more = max(more, self.ids)
        self.ids += more
        self.run.engines["free_blocks"] += more

    def _see(self) -> None:
        """Make the scratch copy, which shares the arrays that a plan does not change, and views of columns."""
        run = self.run
        self.scratch = scratch = run._replace(
            requests=zeros(len(run.requests), layout.REQUEST),
            engines=np.zeros(1, layout.ENGINE),
            status=np.zeros(1, layout.RUN_STATUS),
            queues=np.zeros_like(run.queues),
        )
        self._engine_free = run.engines["free_blocks"]
        self._evictions = run.status["evictions"], scratch.status["evictions"]
        self._entry_rows, self._entry_tokens = run.entries[0]["request"], run.entries[0]["tokens"]
        self._packed, self._computed = run.packing["length"], scratch.requests["computed_tokens"]
        self._reserve_context, self._watermark_blocks = (
            run.limits[name] for name in ("reserve_context", "watermark_blocks")
        )
        self._park()

    def _park(self) -> None:
        """Park the arrays for the kernels."""
        own = self.most_output_tokens, self.delivered, self.barred, self.sums, self.total_blocks, self.chunks
        self._parked.park(MirrorArrays(self.run, self.scratch, self.functions, *own))


def _fresh(pool: Deployment, policy: Policy, numbers: np.ndarray, correction: Correction | None) -> SimulationState:
    """Make the arrays of an empty engine without rows."""
    sizes = {"requests": 0, "engines": 1, "capacity": 0, "timeline": 1, "scratch": policy.scratch.rows}
    tables = sizes | state_sizes([policy.state], 1, 0, MOST_GROUPS, MOST_GROUPS) | {"tasks": 0}
    return engines_state(
        (pool,),
        sizes,
        engines=fresh_engines((pool,), 0.0, None),
        parameters=numbers[None, :].copy(),
        state=fresh(StateTables, tables),
        disturbance=Disturbance().to_array(),
        **({} if correction is None else {"correction": correction.to_array()}),
    )

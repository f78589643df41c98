"""Decides for one vLLM engine with the artifact's policy on a mirror of it; if that fails, vLLM decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from servegym.adapters.vllm.caching_mirror import CachingMirror
from servegym.adapters.vllm.metrics import Metrics
from servegym.adapters.vllm.mirror import Mirror, Plan
from servegym.adapters.vllm.settings import Settings
from servegym.adapters.vllm.terms import Defaults, Terms, TermsReader
from servegym.baselines.artifact import Artifact, load_artifact
from servegym.errors import VllmError
from servegym.latency_models.model import LatencyModel
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.scenario import token_budget_within
from servegym.simulator.policies.policy import Policy
from servegym.simulator.records.types import NO_LIMIT

MOST_STEPS_ALONE = 1023  # most steps until the policy is tried again after repeated failures


class Decisions:
    """Asks the policy for a plan of each step, within a time limit.

    When a decision fails or is late, vLLM decides that step; after the k-th in a row also the next 2^k - 1 steps, at
    most 1023. The first is logged, all are counted.

    limit_s: of a decision. warn: writes a line to the log.
    """

    def __init__(
        self, mirror: Mirror, reader: TermsReader, limit_s: float, metrics: Metrics, warn: Callable[[str], None]
    ):
        self.mirror, self.reader, self.limit_s, self.metrics, self.warn = mirror, reader, limit_s, metrics, warn
        self.steps_alone = 0
        self.failures_in_a_row = 0
        self.warned = False

    @property
    def label(self) -> str:
        return self.mirror.policy.label

    def add(self, request: Any, arrival_s: float, most_context_tokens: int) -> int:
        """Add a vLLM request and return its row. arrival_s: on the clock of `plan`."""
        sampling = request.sampling_params
        terms = self.reader.read(getattr(sampling, "extra_args", None), request.priority)
        if terms.malformed:
            self.metrics.add("malformed_xargs", terms.malformed)
        prompt = request.num_prompt_tokens
        most = max(1, min(request.max_tokens, most_context_tokens - prompt))
        return self.mirror.add(arrival_s, prompt, most, request.priority, terms)

    def plan(
        self,
        now_s: float,
        free_blocks: int,
        most_tokens: int,
        most_chunk_tokens: int,
        max_num_seqs: int,
        under_way: bool = False,
    ) -> Plan | None:
        """Return the batch that the policy wants now, as `Mirror.plan` does; None: vLLM decides, or nothing can run."""
        if self.steps_alone > 0:
            self.steps_alone -= 1
            self.metrics.add("fallback_steps")
            return None
        begin = time.perf_counter()
        try:
            plan = self.mirror.plan(now_s, free_blocks, most_tokens, most_chunk_tokens, max_num_seqs, under_way)
        except Exception as error:  # no error of a policy may stop the engine
            self._failed("failures", f"failed ({error})")
            return None
        seconds = time.perf_counter() - begin
        if seconds > self.limit_s:
            self._failed("late", f"took {1e3 * seconds:.3g} ms, over the limit of {1e3 * self.limit_s:.3g} ms")
            return None
        self.failures_in_a_row = 0
        return plan

    def _failed(self, counter: str, what: str) -> None:
        self.metrics.add(counter)
        self.metrics.add("fallback_steps")
        self.failures_in_a_row += 1
        self.steps_alone = min(2**self.failures_in_a_row - 1, MOST_STEPS_ALONE)
        if not self.warned:
            self.warned = True
            self.warn(f"{self.label} {what}: vLLM decides for now; further failures are only counted")


def warm_up(mirror: Mirror, terms: Terms) -> None:
    """Compile the kernels, or read them from the cache, by taking a mirror through the life of a request."""
    mirror.join(row := mirror.add(0.0, 1, 1, 0, terms))
    most, one = int(NO_LIMIT), np.ones(1, "i4")
    mirror.plan(0.0, mirror.total_blocks, most, most, most)
    rows = np.array([row], "i4")
    estimate_s, scale = mirror.settle(rows, rows, one, one, 0 * one, 0.0)
    mirror.correct(estimate_s, scale, 0.0)
    mirror.deliver(rows, one, one, 0.0)
    mirror.leave([row], finished=True)


def scheduler_of(artifact: Artifact) -> Policy:
    """Return the scheduler of an artifact. Raises VllmError if it has none."""
    policy = artifact.scheduler or artifact.decode_scheduler
    if policy is None:
        raise VllmError(f"the artifact has {artifact.label}, which is no scheduler; vLLM's plug-in takes a scheduler")
    return policy


def estimator_of(artifact: Artifact, settings: Settings) -> LatencyModel:
    """Return the policy's estimator. Raises VllmError if there is none."""
    if settings.estimator:
        from servegym.latency_models.profile import load_profile

        return load_profile(settings.estimator).estimator
    if artifact.estimator is None:
        raise VllmError(
            "the artifact has no estimator; export it with --device PROFILE, or set SERVEGYM_ESTIMATOR to a profile"
        )
    model = LatencyModel(artifact.estimator["form"], np.array(artifact.estimator["coefficients"], "f8"))
    model.exec_s  # noqa: B018 (raises now for a form that cannot be an estimator)
    return model


def steps_of(artifact: Artifact, settings: Settings) -> int:
    """Return `step_tokens` of the estimator's device; 0 if not known."""
    if settings.estimator:
        from servegym.latency_models.profile import load_profile

        return load_profile(settings.estimator).step_tokens
    return int((artifact.estimator or {}).get("fit", {}).get("step_tokens", 0))


def facts_of(defaults: Defaults, estimator: LatencyModel, step_tokens: int) -> Callable[[str], float]:
    """Return a function from names to facts on which a policy's defaults may depend, such as the token budget that
    keeps a TPOT SLO. It raises VllmError for facts that a live engine does not know."""

    def fact(name: str) -> float:
        if name == "min_tpot_slo_s":
            return defaults.tpot_slo_s
        if name == "profiled_token_budget":
            return float(token_budget_within(defaults.tpot_slo_s, 0.0, estimator))  # 0.0: no cached tokens
        if name == "step_tokens":
            return float(step_tokens)
        raise VllmError(f"a parameter depends on {name}, which is not known here; give it a value")

    return fact


def decisions_for(
    settings: Settings,
    metrics: Metrics,
    total_blocks: int,
    block_tokens: int,
    watermark_blocks: int,
    warn: Callable[[str], None],
    chunks: bool = True,
    context_blocks: int = 0,
) -> Decisions:
    """Load the settings' artifact and make it ready to decide for an engine.

    watermark_blocks: left free by vLLM at an admission. chunks: the engine has chunked prefill. context_blocks: the
    most blocks that a request can hold, for plans that look into the prefix cache; 0: plans without it. Raises
    ServegymError for an artifact or settings that do not suit the engine.
    """
    artifact = load_artifact(settings.policy)
    policy, estimator = scheduler_of(artifact), estimator_of(artifact, settings)
    defaults = Defaults.of_workload(artifact.workload)
    if policy.state.tasks:
        warn(f"{policy.label} suspends batches, which vLLM cannot do; every batch runs to its end")
    if not chunks:
        warn("this vLLM has no chunked prefill: prompts run whole, even those longer than the policy's token budget")
    reader, fact = TermsReader(defaults), facts_of(defaults, estimator, steps_of(artifact, settings))
    numbers = policy.numbers(fact)
    correction = Correction() if settings.correct else None

    def mirror() -> Mirror:
        engine = (
            policy, numbers, estimator, total_blocks, block_tokens, watermark_blocks, correction,
            defaults.first_token_weight, chunks,
        )  # fmt: skip
        return CachingMirror(*engine, context_blocks=context_blocks) if context_blocks else Mirror(*engine)

    warm_up(mirror(), reader.read(None, 0))
    return Decisions(mirror(), reader, settings.decision_limit_s, metrics, warn)

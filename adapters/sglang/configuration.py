"""Translates a scheduler to options of SGLang and a rule for the `priority` of each request.

SGLang orders waiting requests by their priority, a whole number that does not change, then by arrival; decodes always
run. So only policies whose order of prefills is fixed at a request's arrival can be translated. Options are those of
0.5.23 (arg_groups/fields/schedule.py), the rules those of managers/schedule_policy.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from servegym.baselines.artifact.artifact import Artifact
from servegym.baselines.learned.derived import LearnedPolicy
from servegym.errors import ExportError
from servegym.simulator.policies.policy import Fact, Policy

VERSION = "0.5.23"
Value = bool | int | str
BY_PRIORITY: dict[str, Value] = {
    "enable-priority-scheduling": True,
    "schedule-low-priority-values-first": True,
    "disable-priority-preemption": True,  # else a priority better by more than 10 preempts; these policies do not
}
PREFIXES = (
    "SGLang caches prefixes in a radix tree unless --disable-radix-cache is given; the artifact's policy knows nothing "
    "of it"
)
ONE_CHUNKED = (
    "a prompt that is computed in chunks goes before all others until it is done: a more urgent one waits for its last "
    "chunk"
)
CONSERVATIVE = (
    "SGLang admits a request if the estimated memory of all requests fits (--schedule-conservativeness), and retracts "
    "decodes if it was too low; the simulator takes memory as it is needed"
)
WHOLE = (
    "a prompt longer than max-prefill-tokens runs alone, as in the simulator; the bound is never below the model's "
    "context length"
)


@dataclasses.dataclass(frozen=True)
class Rule:
    """The translation of a scheduler. mixed: prefill chunks run with decodes, within one token budget.

    priority: computes SGLang's `priority` from a request's arrival (seconds since 1970), prompt tokens, TTFT SLO in s,
    and own priority; None: the order of arrival is enough. formula: the same in words.
    """

    mixed: bool
    priority: Callable[[float, int, float, int], int] | None = None
    formula: str = ""


def _deadline_ms(arrival_s: float, prompt_tokens: int, ttft_slo_s: float, priority: int) -> int:
    return math.ceil(1000 * (arrival_s + ttft_slo_s))


def _prompt(arrival_s: float, prompt_tokens: int, ttft_slo_s: float, priority: int) -> int:
    return prompt_tokens


def _own(arrival_s: float, prompt_tokens: int, ttft_slo_s: float, priority: int) -> int:
    return priority


RULES = {
    "vllm-v1": Rule(True),
    "vllm-fcfs": Rule(False),
    "sarathi-fcfs": Rule(True),
    "sarathi-priority": Rule(True, _own, "the request's own priority (lower is more important)"),
    "sarathi-edf": Rule(
        True, _deadline_ms, "1000 x (time of arrival + TTFT SLO, or TTLT SLO), in ms since 1970, rounded up"
    ),
    "sarathi-sjf": Rule(True, _prompt, "its number of prompt tokens"),
}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A configuration of SGLang. options: of `sglang.launch_server`, by name without leading dashes. priority: the rule
    for the `priority` of each request in words; "": none is needed. differences: of SGLang from the policy."""

    options: Mapping[str, Value]
    priority: str
    differences: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """The options as arguments of the command line."""
        arguments = []
        for name, value in self.options.items():
            if value is not False:
                arguments += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return arguments


def rule_of(policy: Policy) -> Rule:
    """Return the translation of a scheduler. Raises ExportError if there is none."""
    if isinstance(policy, LearnedPolicy):
        raise ExportError(f"{policy.label}: a learned policy; SGLang runs no networks, and takes {', '.join(RULES)}")
    if policy.name not in RULES:
        raise ExportError(
            f"{policy.label}: SGLang orders by a number that is fixed at arrival; it takes {', '.join(RULES)}"
        )
    if policy.name == "vllm-v1" and policy.chosen()["policy"] == "priority":
        return Rule(True, _own, "the request's own priority (lower is more important)")
    return RULES[policy.name]


def sglang_configuration(artifact: Artifact) -> Configuration:
    """Make the configuration for an artifact's scheduler.

    Raises ExportError for an artifact without a scheduler, and for a scheduler without a translation or token budget.
    """
    policy = artifact.scheduler
    if policy is None:
        raise ExportError(f"{artifact.label}: SGLang takes a scheduler, and the artifact has none")
    rule, values = rule_of(policy), policy.chosen()
    budget = values["max_num_batched_tokens"]
    if isinstance(budget, Fact):
        raise ExportError(
            f"{policy.label}: its max_num_batched_tokens is measured on a device; set it: "
            f"{policy.name}:max_num_batched_tokens=N"
        )
    options: dict[str, Value] = {"schedule-policy": "fcfs", "max-running-requests": int(str(values["max_num_seqs"]))}
    if rule.mixed:
        options |= {"chunked-prefill-size": int(budget), "enable-mixed-chunk": True}
    else:
        options |= {"chunked-prefill-size": -1, "max-prefill-tokens": int(budget)}
    differences = [CONSERVATIVE, PREFIXES, ONE_CHUNKED if rule.mixed else WHOLE]
    if rule.priority is not None:
        options |= BY_PRIORITY
    if policy.name == "vllm-v1" and rule.priority is not None:
        options["retraction-policy"] = "priority"
    return Configuration(options, rule.formula, tuple(differences + _other_parts(artifact, values)))


def _other_parts(artifact: Artifact, values: Mapping[str, Any]) -> list[str]:
    notes = [f"{policy.label} ({role}): SGLang's engine does not run it" for role, policy in artifact.policies.items()
             if role != "scheduler"]  # fmt: skip
    for name in ("watermark", "long_prefill_token_threshold"):
        if values.get(name):
            notes.append(f"{name}={values[name]}: there is no such option")
    return notes

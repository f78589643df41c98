"""Schedulers as options and priorities of SGLang; where its source is installed, checked against that."""

import ast
import importlib.util
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servegym.adapters.sglang.configuration import RULES, VERSION, Configuration, rule_of, sglang_configuration
from servegym.baselines.artifact import Artifact
from servegym.baselines.registry import router, scheduler
from servegym.errors import ExportError

LABELS = [
    "vllm-v1", "vllm-v1:policy=priority", "vllm-fcfs", "sarathi-fcfs:max_num_batched_tokens=512",
    "sarathi-priority:max_num_batched_tokens=512", "sarathi-edf:max_num_batched_tokens=512",
    "sarathi-sjf:max_num_batched_tokens=512",
]  # fmt: skip


def made(label: str, **more: Any) -> Configuration:
    return sglang_configuration(Artifact({"scheduler": scheduler(label)} | more))


def test_options() -> None:
    assert made("sarathi-fcfs:max_num_batched_tokens=512").arguments == [
        "--schedule-policy", "fcfs", "--max-running-requests", "128", "--chunked-prefill-size", "512",
        "--enable-mixed-chunk",
    ]  # fmt: skip
    assert made("vllm-fcfs").arguments[4:] == ["--chunked-prefill-size", "-1", "--max-prefill-tokens", "8192"]
    by_priority = made("vllm-v1:policy=priority").options
    assert by_priority["retraction-policy"] == "priority" and by_priority["disable-priority-preemption"] is True
    assert made("vllm-v1").priority == "" and "prompt tokens" in made("sarathi-sjf:max_num_batched_tokens=9").priority


def test_differences_are_named() -> None:
    policies = made("vllm-v1:watermark=0.1,long_prefill_token_threshold=512", router=router("gorouting"))
    said = " ".join(policies.differences)
    for word in ("radix", "last chunk", "conservativeness", "watermark=0.1", "threshold=512", "gorouting"):
        assert word in said


@pytest.mark.parametrize(("label", "word"), [
    ("slide-batching", "takes vllm-v1"),
    ("edf", "fixed at arrival"),
    ("sarathi-edf", "max_num_batched_tokens=N"),
])  # fmt: skip
def test_what_cannot_be_told_is_refused(label: str, word: str) -> None:
    with pytest.raises(ExportError, match=word):
        made(label)
    with pytest.raises(ExportError, match="the artifact has none"):
        sglang_configuration(Artifact({"router": router("min-load")}))


def orders(label: str) -> tuple[list[SimpleNamespace], list[int]]:
    """Requests of a random queue with the priorities they are sent with, and the order in which the policy has them."""
    drawn = random.Random(7)
    requests, rule = [], rule_of(scheduler(label))
    for number in range(60):
        arrival_s, prompt, slo_s = 1.7e9 + drawn.uniform(0, 9), drawn.randint(1, 20), drawn.choice([0.5, 1.0, 8.0])
        own = drawn.randint(0, 2)
        priority = rule.priority(arrival_s, prompt, slo_s, own) if rule.priority else None
        stats = SimpleNamespace(wait_queue_entry_time=arrival_s)
        requests.append(SimpleNamespace(number=number, priority=priority, time_stats=stats))
        keys = {"sarathi-edf": arrival_s + slo_s, "sarathi-sjf": prompt, "sarathi-priority": own, "vllm-v1": own}
        requests[-1].key = (keys.get(scheduler(label).name, 0.0), arrival_s)
    return requests, [one.number for one in sorted(requests, key=lambda one: one.key)]


def source_of(path: str) -> ast.Module:
    """A file of the installed SGLang, which is not imported: it takes a GPU's packages."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    return ast.parse((Path(next(iter(spec.submodule_search_locations))) / path).read_text())


def sglangs_own_order() -> Any:
    """`SchedulePolicy._sort_by_priority_and_fcfs`, out of its source."""
    for node in ast.walk(source_of("srt/managers/schedule_policy.py")):
        if isinstance(node, ast.FunctionDef) and node.name == "_sort_by_priority_and_fcfs":
            node.decorator_list = []
            for argument in node.args.args:
                argument.annotation = None
            scope: dict[str, Any] = {}
            exec(compile(ast.Module([node], []), "sglang", "exec"), scope)
            return scope[node.name]
    raise AssertionError("SGLang sorts by priority in another way")


@pytest.mark.parametrize("label", [label for label in LABELS if rule_of(scheduler(label)).priority])
def test_priorities_give_the_policys_order(label: str) -> None:
    """By SGLang's rule: low values first, then arrival. Deadlines in the same ms are in order of arrival."""
    requests, expected = orders(label)
    ordered = sorted(requests, key=lambda one: (one.priority, one.time_stats.wait_queue_entry_time))
    assert [one.number for one in ordered] == expected


@pytest.mark.parametrize("label", [label for label in LABELS if rule_of(scheduler(label)).priority])
def test_sglangs_own_code_gives_it_too(label: str) -> None:
    sort = sglangs_own_order()
    requests, expected = orders(label)
    random.Random(1).shuffle(requests)
    sort(requests, 1)
    assert [one.number for one in requests] == expected


def test_options_are_sglangs() -> None:
    fields = {
        node.target.id
        for node in ast.walk(source_of("srt/arg_groups/fields/schedule.py"))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    memory = {
        node.target.id
        for name in ("exec_", "memory", "serving", "schedule")
        for node in ast.walk(source_of(f"srt/arg_groups/fields/{name}.py"))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for label in LABELS:
        for option in made(label).options:
            assert option.replace("-", "_") in fields | memory, f"SGLang (recorded: {VERSION}) has no --{option}"


def test_every_rule_is_tried() -> None:
    assert {scheduler(label).name for label in LABELS} == set(RULES)

"""The plug-in inside vLLM's scheduler where things go wrong, or otherwise than in a run from start to end."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.engines.vllm_driving import Limits, make_request, make_scheduler
from servegym.adapters.vllm.versions import installed_version, parts_of
from servegym.errors import ServegymError, VllmError
from servegym.simulator.policies.policy import Policy, get_policy
from servegym.simulator.records.signatures import scheduler
from tests.adapters.vllm.with_vllm.served import (
    PROFILE,
    UnderWay,
    drive,
    drive_async,
    plugged,
    saved,
    stock,
    workload_of,
)

SLIDE = get_policy("scheduler", "slide-batching")
CRAMPED = Limits(400, max_num_batched_tokens=2048)
PARTS = parts_of(installed_version())
WORKLOAD = workload_of(4, 60, 60.0, prompt=600)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return saved(SLIDE, WORKLOAD, tmp_path / "policy.json")


@scheduler
def nothing_but_nan(context, ranks, limits):
    queue = context.queue
    for position in range(queue.shape[0]):
        ranks[position].key = np.nan


NAN = Policy("nan", "scheduler", "Ranks that are no numbers.", "a test", nothing_but_nan)


def break_policy(made: Any) -> None:
    mirror = made.servegym.mirror
    sound = mirror.functions
    mirror.decide_by(sound._replace(schedulers=(NAN.function.value,) * len(sound.schedulers)))


@pytest.mark.parametrize("queueing", ["fcfs", "priority"])
def test_with_a_policy_that_fails_vllm_decides_as_it_always_does(policy: Path, queueing: str) -> None:
    limits = dataclasses.replace(CRAMPED, scheduling_policy=queueing)
    broken = plugged(limits, policy)
    break_policy(broken)
    served, own = drive(broken, WORKLOAD, PROFILE.device), drive(stock(limits), WORKLOAD, PROFILE.device)
    assert served.steps == own.steps
    assert served.token_s == own.token_s
    counts = broken.servegym.metrics.counts
    assert counts["fallback_steps"] >= len(served.steps)
    assert counts["failures"] > 3
    assert counts["decisions"] == counts["deviating_steps"] == 0


@pytest.mark.parametrize("queueing", ["fcfs", "priority"])
def test_a_policy_that_fails_on_the_way_loses_none(policy: Path, queueing: str) -> None:
    """It fails, is back, and fails again: every request gets all of its tokens, and vLLM's queues are in its order."""
    made = plugged(dataclasses.replace(CRAMPED, scheduling_policy=queueing), policy)
    plugin, plan, turn = made.servegym, made.servegym.mirror.plan, [0]

    def now_and_then(*arguments: Any) -> Any:
        turn[0] += 1
        if turn[0] % 7 == 0:
            raise ZeroDivisionError("on purpose")
        return plan(*arguments)

    plugin.mirror.plan = now_and_then
    served = drive(made, WORKLOAD, PROFILE.device)
    assert [len(times) for times in served.token_s] == WORKLOAD.table["output_tokens"].tolist()
    counts = plugin.metrics.counts
    assert counts["failures"] > 10
    assert counts["decisions"] > 5 * counts["failures"]
    assert plugin.row_of == plugin.request_of == {}
    assert made.kv_cache_manager.block_pool.get_num_free_blocks() == CRAMPED.blocks


@pytest.mark.parametrize("part", ["settle", "deliver", "leave", "correct", "add"])
def test_an_error_in_the_plugin_itself_leaves_the_engine_to_vllm(policy: Path, part: str) -> None:
    made = plugged(CRAMPED, policy)
    whole, calls = getattr(made.servegym.mirror, part), [0]

    def breaks(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        if calls[0] == 10:
            raise RuntimeError("on purpose")
        return whole(*arguments, **keywords)

    setattr(made.servegym.mirror, part, breaks)
    served = drive(made, WORKLOAD, PROFILE.device)
    assert [len(times) for times in served.token_s] == WORKLOAD.table["output_tokens"].tolist()
    assert calls[0] == 10
    assert made.servegym.broken
    assert made.servegym.metrics.counts["broken"] == 1
    assert made.max_num_scheduled_tokens == CRAMPED.max_num_batched_tokens


def test_vllms_own_limits_are_back_after_each_step(policy: Path) -> None:
    made = plugged(CRAMPED, policy)
    names = ("max_num_scheduled_tokens", "max_num_running_reqs", "scheduler_reserve_full_isl")
    before = [getattr(made, name) for name in names]
    drive(made, WORKLOAD, PROFILE.device, most_steps=20)
    assert [getattr(made, name) for name in names] == before
    assert made.servegym.enforcer.chunks is None


def test_requests_that_are_taken_back(policy: Path) -> None:
    from vllm.v1.request import RequestStatus

    made = plugged(CRAMPED, policy)
    now_s = [0.0]
    made.use_clock(lambda: now_s[0])
    for index, row in enumerate(WORKLOAD.table):
        made.add_request(make_request(row, index))
    made.schedule()
    running, waiting = made.running[0].request_id, next(iter(made.waiting)).request_id
    made.finish_requests(running, RequestStatus.FINISHED_ABORTED)
    made.finish_requests([waiting, "unknown"], RequestStatus.FINISHED_ABORTED)
    assert len(made.servegym.row_of) == len(WORKLOAD) - 2
    assert made.servegym.mirror.queue_length == len(WORKLOAD) - 2
    now_s[0] = 0.1
    assert made.schedule().total_num_scheduled_tokens > 0
    made.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    assert made.servegym.row_of == made.servegym.request_of == made.servegym.number_of == {}
    assert made.servegym.mirror.queue_length == 0
    assert made.servegym.mirror.run.engines[0].running == 0


@pytest.mark.parametrize(
    "extra_args",
    [
        {"ttft_slo_s": float("nan"), "tpot_slo_s": -1, "ttlt_slo_s": "x" * 100_000, "weight": [1], "client": {"a": 1}},
        {"ttft_slo_s": 10**400, "weight": "1e999", "urgency": None, "predicted_output_tokens": True},
    ],
)
def test_malformed_xargs_are_defaults_and_counted(policy: Path, extra_args: dict[str, Any]) -> None:
    made = plugged(CRAMPED, policy)
    made.use_clock(lambda: 0.0)
    request = make_request(WORKLOAD.table[0], 0)
    request.sampling_params.extra_args = extra_args
    request.priority = 2**70
    made.add_request(request)
    record = made.servegym.mirror.run.requests[made.servegym.row_of[request.request_id]]
    assert (record.ttft_slo_s, record.weight) == (1.0, 1.0)
    assert record.priority == 2**31 - 1
    assert record.client == made.servegym.decisions.reader.client_of(request.priority)
    assert made.servegym.metrics.counts["malformed_xargs"] == len(extra_args)
    assert made.schedule().total_num_scheduled_tokens > 0


def test_async_scheduling_serves_all(policy: Path, tmp_path: Path) -> None:
    """Two steps under way: the next is planned before the last one's tokens are known."""
    log = tmp_path / "steps.jsonl"
    limits = dataclasses.replace(CRAMPED, async_scheduling=True)
    made = plugged(limits, policy, "AsyncScheduler", step_log=str(log))
    assert drive_async(made, WORKLOAD, 2) == WORKLOAD.table["output_tokens"].tolist()
    counts = made.servegym.metrics.counts
    assert counts["tokens"] == WORKLOAD.table["output_tokens"].sum()
    assert counts["fallback_steps"] == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) <= counts["decisions"]  # some decide that nobody runs before the step under way has ended
    assert counts["deviating_steps"] == 0
    assert made.servegym.row_of == made.servegym.steps == {}
    assert made.servegym.mirror.run.engines[0].running == 0


def tokens_to_come(request: Any, under_way: UnderWay) -> int:
    """Those of the steps under way, but for those that were under way at a preemption after which they are dropped."""
    if not PARTS.stale:
        tokens = [len(sampled.get(request.request_id, ())) for _, sampled in under_way]
        return sum([number for number in tokens if number][request.async_tokens_to_discard :])
    stale, to_come = request.num_stale_output_tokens, 0
    for output, sampled in under_way:
        scheduled = output.num_scheduled_tokens.get(request.request_id, 0)
        if scheduled and not (stale > 0 and request.drop_stale_output):
            to_come += len(sampled[request.request_id])
        stale -= scheduled
    return to_come


def was_preempted_under_way(request: Any) -> bool:
    """Whether tokens are to come that were under way when it was preempted."""
    if PARTS.stale:
        return bool(request.num_stale_output_tokens > 0)
    return bool(request.status.name == "PREEMPTED" and request.num_output_placeholders > 0)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", ["slide-batching", "vllm-v1:max_num_batched_tokens=300"])
def test_the_mirror_counts_each_token_that_is_out_or_under_way(name: str, depth: int, tmp_path: Path) -> None:
    """Also of requests that are preempted with tokens under way, at every moment of random runs with little memory."""
    chosen, preempted = get_policy("scheduler", name), set()
    for seed, (blocks, prompt, output) in enumerate([(30, 200, 200), (60, 300, 100)]):
        workload = workload_of(seed, 14, 60.0, prompt, output)
        limits = Limits(blocks, max_num_batched_tokens=2048, async_scheduling=True)
        made = plugged(limits, saved(chosen, workload, tmp_path / "policy.json"), "AsyncScheduler")
        plugin = made.servegym

        def look(under_way: UnderWay, made: Any = made, plugin: Any = plugin, seed: int = seed) -> None:
            counted = plugin.mirror.run.requests["num_output_tokens"]
            for request_id, row in plugin.row_of.items():
                request = made.requests[request_id]
                assert counted[row] == request.num_output_tokens + tokens_to_come(request, under_way), request_id
                if was_preempted_under_way(request):
                    preempted.add((seed, request_id))

        assert drive_async(made, workload, depth, look) == workload.table["output_tokens"].tolist()
        assert not plugin.broken
    assert (len(preempted) >= 5) == (depth > 1)


@pytest.mark.parametrize("enforce", ["exact", "order"])
def test_where_vllm_cannot_chunk_long_prompts_run_whole(enforce: str, tmp_path: Path) -> None:
    """Prompts longer than the policy's budget come to their turn all the same."""
    chosen, workload = (
        get_policy("scheduler", "sarathi-fcfs:max_num_batched_tokens=512"),
        workload_of(6, 40, 20.0, 3000, 60),
    )
    limits = Limits(900, max_num_batched_tokens=2**16, chunked_prefill=False)
    made = plugged(limits, saved(chosen, workload, tmp_path / "policy.json"), enforce=enforce)
    served = drive(made, workload, PROFILE.device)
    outputs, prompts = workload.table["output_tokens"], workload.table["prompt_tokens"]
    assert [len(times) for times in served.token_s] == outputs.tolist()
    first: dict[int, int] = {}
    for step in served.steps:
        for request, tokens in step.scheduled:
            first.setdefault(request, tokens)
        if len(step.scheduled) > 1:
            assert sum(tokens for _, tokens in step.scheduled) <= 512
    assert [first[request] for request in range(len(workload))] == prompts.tolist()
    assert (prompts > 512).sum() > 20
    assert made.servegym.metrics.counts["fallback_steps"] == 0


def test_what_it_cannot_work_with_stops_the_start(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERVEGYM_POLICY", raising=False)
    from servegym.adapters.vllm import Scheduler

    with pytest.raises(VllmError, match="no policy: set SERVEGYM_POLICY"):
        make_scheduler(Scheduler, CRAMPED)
    broken = tmp_path / "broken.json"
    broken.write_text(policy.read_text()[:100])
    monkeypatch.setenv("SERVEGYM_POLICY", str(broken))
    with pytest.raises(ServegymError) as caught:
        make_scheduler(Scheduler, CRAMPED)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("SERVEGYM_POLICY", str(policy))
    assert make_scheduler(Scheduler, CRAMPED).servegym.decisions.label == "slide-batching"

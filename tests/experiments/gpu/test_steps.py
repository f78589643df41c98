"""A step of an engine is paired with the batch that the simulator forms in its place."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.gpu.compare import deployment_of, scheduler_of
from experiments.gpu.driving import Served, Step
from experiments.gpu.records import RUNS, coded
from experiments.gpu.step_times import reconstructed
from experiments.gpu.steps import steps
from experiments.gpu.workloads import PROFILE, STOCK, workload_of
from servegym.adapters.profiling.design import Batch, Prefill
from servegym.latency_models.measured_batches import DURATION
from servegym.latency_models.model import as_batches
from servegym.latency_models.profile import load_profile
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.runs.simulation import Simulation

REQUESTS, CONTEXT = 12, 2048
ENGINE: dict[str, Any] = {
    "kv_blocks": 2000, "kv_block_tokens": 16,
    "space": {"batch_tokens": 512, "sequences": 8, "context_tokens": CONTEXT},
    "shape": {"asynchronous": True, "more": {}},
}  # fmt: skip


def saturated(late: int | None = None, lost: int = 0) -> dict[str, Any]:
    """The line of a run on an engine that takes what `h200-llama3-8b` says. late: a step whose tokens are taken in with
    the next one's; lost: tokens of the first request that did not come."""
    workload = workload_of("azure-conv", REQUESTS, None, 0, CONTEXT, load_profile(PROFILE))
    line: dict[str, Any] = {
        "run": "azure-conv, saturation", "done": True, "rehearsal": True, "machine": {"gpu": "none"},
        "trace": "azure-conv", "policy": STOCK, "load": None, "rate_per_s": None, "seed": 0, "requests": REQUESTS,
        "digest": workload.digest, "profile": PROFILE, "engine": ENGINE,
    }  # fmt: skip
    engine = load_profile("h200-llama3-8b")
    scenario = Scenario(workload, deployment_of(line, engine, engine), scheduler_of(line))
    events = Simulation(scenario, record_timeline=True).run().timeline
    emitted = events[events.kind.astype(str) == "token"]
    times_s = np.unique(emitted.time_s)
    if late is not None:
        times_s[late] += 0.9 * (times_s[late + 1] - times_s[late])
    time_s = times_s[np.searchsorted(np.unique(emitted.time_s), emitted.time_s)]
    tokens = [time_s[emitted.request.to_numpy() == request].tolist() for request in range(REQUESTS)]
    del tokens[0][50 : 50 + lost]
    served = Served(workload.table["arrival_s"].copy(), tokens, np.zeros(0), np.zeros(0, "i8"), {}, False)
    return {**line, "arrays": coded(served.arrays(workload))}


def test_the_steps_are_those_of_the_engine_though_another_profile_forms_the_batches(tmp_path: Path) -> None:
    (tmp_path / RUNS).write_text(json.dumps(saturated()) + "\n")
    table = steps(tmp_path)
    said_s = load_profile("h200-llama3-8b").device.evaluate(as_batches(table))
    assert len(table) > 100
    assert table[DURATION].to_numpy() == pytest.approx(said_s, abs=2.5e-6)
    assert table.prefill_requests.max() > 0 and table.decode_requests.max() == ENGINE["space"]["sequences"]


def test_a_step_taken_in_late_is_left_out_with_the_one_after_it(tmp_path: Path) -> None:
    lengths = []
    for late in (None, 60):
        (tmp_path / RUNS).write_text(json.dumps(saturated(late)) + "\n")
        lengths.append(len(steps(tmp_path)))
    assert lengths[0] - lengths[1] == 2
    assert len(steps(tmp_path, late=True)) == lengths[0], "but for the first one, which no fit has"


def test_a_run_with_another_number_of_steps_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as one that was cut at its time limit: the page has the others."""
    line = saturated()
    other = {**line, "run": "cut", "engine": {**ENGINE, "kv_blocks": 150}}
    (tmp_path / RUNS).write_text("".join(json.dumps(one) + "\n" for one in (other, line)))
    assert set(steps(tmp_path)["run"]) == {line["run"]}
    assert "left out: cut: " in capsys.readouterr().err


def test_the_share_of_steps_that_are_alike_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lost in (0, 5):
        (tmp_path / RUNS).write_text(json.dumps(saturated(lost=lost)) + "\n")
        steps(tmp_path)
        assert ("100.0 % as many" in capsys.readouterr().err) == (lost == 0)


def test_a_log_of_steps_is_taken_as_it_is_at_any_load(tmp_path: Path) -> None:
    batches = [Batch((Prefill(100, 20),)), *(Batch(decodes=(120 + n,)) for n in range(8))]
    workload = workload_of("azure-conv", 2, 1.0, 0, CONTEXT, load_profile(PROFILE))
    empty: list[list[float]] = [[], []]
    took = [Step(None, took_s, 0.0, 0.0) for took_s in [0.02] + [0.01] * 8]
    served = Served(workload.table["arrival_s"], empty, np.zeros(0), np.zeros(0, "i8"), {}, False, batches, took)
    line = {"run": "a", "done": True, "load": 0.8, "engine": ENGINE, "arrays": coded(served.arrays(workload))}
    (tmp_path / RUNS).write_text(json.dumps(line) + "\n")
    table = steps(tmp_path, 0.8)
    assert len(steps(tmp_path, 0.5)) == 0
    assert table.decode_cached_tokens.tolist() == [120 + n for n in range(8)]  # the first step is left out
    assert table[DURATION].tolist() == [0.01] * 8


def test_the_batch_of_a_step_follows_from_its_tokens() -> None:
    workload = workload_of("azure-conv", 2, 1.0, 0, CONTEXT, load_profile(PROFILE))
    first, second = workload.table["prompt_tokens"].tolist()
    tokens = [[0.1, 0.2, 0.3], [0.2, 0.3]]  # the second prompt beside a decode of the first request
    served = Served(workload.table["arrival_s"], tokens, np.zeros(0), np.zeros(0, "i8"), {}, False)
    batches, took_s = reconstructed({"arrays": coded(served.arrays(workload))})
    assert took_s == pytest.approx([0.1, 0.1, 0.1], abs=1e-6)
    assert batches["prefill_tokens"].tolist() == [first, second, 0]
    assert batches["prefill_tokens_squared"].tolist() == [first**2, second**2, 0]
    assert batches["decode_requests"].tolist() == [0, 1, 2]
    assert batches["decode_cached_tokens"].tolist() == [0, first, first + 1 + second]

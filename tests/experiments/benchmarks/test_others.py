"""Other simulators beside ours: what they are told, and that only the same work counts. They are played by scripts."""

import dataclasses
import json
import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from experiments.benchmarks import (
    aisimulate_comparison,
    dynamo_clusters,
    dynamo_comparison,
    others,
    suite,
    vidur_comparison,
    vidur_replay,
)
from experiments.benchmarks.scenarios import DEVICE, Sizes, scenario, workload
from servegym.errors import ExperimentError
from servegym.latency_models.profile import load_profile
from servegym.scenarios.fleets import deployment_of
from servegym.scenarios.parts import Fleet
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records import batches
from servegym.simulator.records.types import BATCH, ROLE_DECODE, ROLE_PREFILL
from servegym.simulator.runs.simulation import Simulation

SIZES = Sizes(requests=200, repetitions=2, compared_cluster_requests=200)
ONE_PAIR = dataclasses.replace(SIZES, repetitions=1)


def test_a_ratio_is_the_median_of_the_pairs() -> None:
    assert others.paired_ratio([2.0, 6.0, 9.0], [1.0, 2.0, 9.0]) == 2.0


def test_every_block_of_the_dynamo_trace_is_its_own(tmp_path: Path) -> None:
    served, path = workload(100), tmp_path / "requests.jsonl"
    dynamo_comparison.write_mooncake(served, path, 16)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["timestamp"] for line in lines] == pytest.approx(1e3 * served.table["arrival_s"])
    assert [line["input_length"] for line in lines] == served.table["prompt_tokens"].tolist()
    assert [line["output_length"] for line in lines] == served.table["output_tokens"].tolist()
    assert [len(line["hash_ids"]) for line in lines] == [math.ceil(line["input_length"] / 16) for line in lines]
    blocks = [block for line in lines for block in line["hash_ids"]]
    assert blocks == list(range(len(blocks)))


def test_a_python_without_the_other_simulator_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="Dynamo's replay failed"):
        dynamo_comparison.replay(sys.executable, tmp_path / "requests.jsonl", 16)
    settings = tmp_path / "settings.json"
    settings.write_text("{}")
    with pytest.raises(ExperimentError, match="Vidur's replay failed"):
        vidur_comparison.replay(sys.executable, tmp_path / "requests.csv", settings)


ANSWERS = """#!/bin/sh
echo "$4" >> %s
echo '{"loop_s": 2.0, "call_s": 3.0, "requests": %d, "prompt_tokens": %d, "output_tokens": %d,
"mean_ttft_s": 0.25, "mean_tpot_s": 0.028}'
"""


def answering(folder: Path, table: np.ndarray, missing_tokens: int = 0) -> tuple[str, Path]:
    """A program that says it served the table, less some tokens, and a file of what it was told."""
    python, told = folder / "python", folder / "told"
    python.write_text(
        ANSWERS % (told, len(table), table["prompt_tokens"].sum(), table["output_tokens"].sum() - missing_tokens)
    )
    python.chmod(0o755)
    return str(python), told


MEASURES = {
    "dynamo_python": dynamo_comparison.measure,
    "vidur_python": vidur_comparison.measure,
    "aisimulate_python": aisimulate_comparison.measure,
}


@pytest.mark.parametrize("python", MEASURES)
def test_the_other_counts_only_for_the_same_work(tmp_path: Path, python: str) -> None:
    program, _ = answering(tmp_path, workload(SIZES.requests).table, missing_tokens=1)
    with pytest.raises(ExperimentError, match="not the same work"):
        suite.measure({"": partial(MEASURES[python], **{python: program})}, SIZES, Console(stderr=True))


def test_ratios_with_dynamo_are_those_of_the_event_loops(tmp_path: Path) -> None:
    program, _ = answering(tmp_path, workload(SIZES.requests).table)
    values = {figure.name: figure.value for figure in dynamo_comparison.measure(SIZES, program)}
    assert values["dynamo_requests_per_s"] == SIZES.requests / 2
    ours = values["dynamo_our_requests_per_s"]
    assert values["dynamo_ratio"] == values["dynamo_equal_times_ratio"] == pytest.approx(ours / (SIZES.requests / 2))
    assert values["dynamo_whole_call_ratio"] == pytest.approx(1.5 * values["dynamo_ratio"])


def test_dynamo_is_told_of_the_same_clusters(tmp_path: Path) -> None:
    program, told = answering(tmp_path, workload(SIZES.compared_cluster_requests).table)
    values = {figure.name: figure.value for figure in dynamo_clusters.measure(ONE_PAIR, program)}
    kinds = ("", "_equal_times", "_kv_router")
    ratios = {f"dynamo_{key}{kind}_ratio" for key in ("4_workers", "2p2d") for kind in kinds}
    assert set(values) == ratios | {f"dynamo_{key}_our_requests_per_s" for key in ("4_workers", "2p2d")}
    ours = values["dynamo_2p2d_our_requests_per_s"]
    assert values["dynamo_2p2d_ratio"] == pytest.approx(ours / (SIZES.compared_cluster_requests / 2))
    four, equal, kv_router = (json.loads(line) for line in told.read_text().splitlines()[:3])
    assert four["num_workers"] == 4 and "router_mode" not in four and kv_router["router_mode"] == "kv_router"
    assert "timing_model" not in four["extra_engine_args"]["engine"]
    assert equal["extra_engine_args"]["engine"]["timing_model"] == dynamo_comparison.EQUAL_TIMES["timing_model"]


def test_dynamo_is_told_of_prefill_and_decode_engines() -> None:
    profile = load_profile(DEVICE)
    times = {ROLE_PREFILL: {"timing_model": 1}, ROLE_DECODE: {"timing_model": 2}}
    options = dynamo_clusters.worker_options(Fleet(prefill=2, decode=3), profile, times)
    assert (options["num_prefill_workers"], options["num_decode_workers"]) == (2, 3)
    prefill, decode = options["prefill_engine_args"]["engine"], options["decode_engine_args"]["engine"]
    assert (prefill["worker_type"], decode["worker_type"]) == ("prefill", "decode")
    assert (prefill["timing_model"], decode["timing_model"]) == (1, 2)
    assert prefill["kv_transfer_bytes_per_token"] == profile.kv.bytes_per_token
    assert prefill["kv_transfer_bandwidth"] == 25.0


def test_equal_times_are_the_mean_of_ours_by_role() -> None:
    engines = deployment_of(ServingSpec().replaced(device=DEVICE, prefill=1, decode=1))
    result = Simulation(scenario(workload(50))).run()
    assert set(dynamo_clusters.equal_times(result)) == {0}
    apart = dataclasses.replace(scenario(workload(50)), deployment=engines)
    result = Simulation(apart).run()
    times = dynamo_clusters.equal_times(result)
    table = result.engines
    for role, name in ((ROLE_PREFILL, "prefill"), (ROLE_DECODE, "decode")):
        own = table[table["role"] == name].iloc[0]
        mean_ms = 1e3 * own["busy_s"] / own["iterations"]
        assert times[role]["timing_model"] == {
            "type": "fixed", "prefill_ms": pytest.approx(mean_ms), "decode_ms": pytest.approx(mean_ms),
        }  # fmt: skip


def test_vidur_is_given_the_same_requests(tmp_path: Path) -> None:
    served, path = workload(100), tmp_path / "requests.csv"
    vidur_comparison.write_trace(served, path)
    header, *lines = (line.split(",") for line in path.read_text().splitlines())
    assert header == ["Date", "Time", "PromptTokenCount", "CompletionTokenCount"]
    assert {line[0] for line in lines} == {vidur_comparison.DATE}
    assert [float(line[1]) for line in lines] == served.table["arrival_s"].tolist()
    assert [int(line[2]) for line in lines] == served.table["prompt_tokens"].tolist()
    assert [int(line[3]) for line in lines] == served.table["output_tokens"].tolist()


LAYERS = 32


def test_the_tables_of_vidur_add_up_to_our_iterations() -> None:
    simulation = Simulation(scenario(workload(100)))
    device = simulation.scenario.deployment.pools[0].device
    settings = vidur_comparison.settings_of(simulation)
    tables = vidur_replay.operator_tables(settings, LAYERS)

    def looked_up_s(tokens: int, decode: tuple[int, int], prefills: list[tuple[int, int]]) -> float:
        once = sum(tables[name][(tokens,)] for name in (*vidur_replay.OTHERS, vidur_replay.ONCE_A_BATCH))
        attention = sum(tables["attn_prefill"][prefill] for prefill in prefills)
        return LAYERS * (once + attention + (tables["attn_decode"][decode] if decode[0] else 0.0)) / 1e3

    def ours_s(requests: list[tuple[int, int, bool]]) -> float:
        batch = np.zeros(1, BATCH)
        for request in requests:
            batches.add(batch[0], *request)
        return device.batch_s(batch[0], device.coefficients)

    for count, cached in ((1, 64), (8, 640), (128, 2048)):
        assert looked_up_s(count, (count, cached), []) == pytest.approx(ours_s([(1, cached, True)] * count))
    for tokens, cached in ((32, 0), (256, 0), (512, 1024)):
        end = math.ceil((cached + tokens) / 64) * 64
        prefill_s = ours_s([(tokens, end - tokens, False)])
        assert looked_up_s(tokens, (0, 0), [(end, tokens)]) == pytest.approx(prefill_s)
    mixed = looked_up_s(264, (8, 640), [(1024, 256)])
    assert mixed == pytest.approx(ours_s([(256, 768, False), *[(1, 640, True)] * 8]), rel=0.05)
    longest = settings["max_tokens"]
    assert (vidur_comparison.MAX_SEQUENCES, math.ceil(longest / 64) * 64) in tables["attn_decode"]
    assert (math.ceil(longest / 64) * 64, vidur_comparison.TOKEN_BUDGET) in tables["attn_prefill"]


def test_the_ratio_with_vidur_is_that_of_the_event_loops(tmp_path: Path) -> None:
    program, told = answering(tmp_path, workload(SIZES.requests).table)
    values = {figure.name: figure.value for figure in vidur_comparison.measure(ONE_PAIR, program)}
    assert values["vidur_requests_per_s"] == SIZES.requests / 2
    assert values["vidur_ratio"] == pytest.approx(values["vidur_our_requests_per_s"] / (SIZES.requests / 2))
    assert told.read_text().strip().endswith("settings.json")


def test_ratios_with_aisimulate_are_those_of_the_event_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVEGYM_DATA", raising=False)
    program, told = answering(tmp_path, workload(SIZES.requests).table)
    values = {figure.name: figure.value for figure in aisimulate_comparison.measure(ONE_PAIR, program)}
    ours = values["aisimulate_our_requests_per_s"]
    assert values["aisimulate_ratio"] == pytest.approx(ours / (SIZES.requests / 2))
    assert values["aisimulate_equal_times_whole_call_ratio"] == pytest.approx(1.5 * values["aisimulate_ratio"])
    own, equal = (json.loads(line) for line in told.read_text().splitlines())
    assert (own["workers"], own["trace_block_size"]) == (1, 16) and "timing_model" not in own["rank"]
    assert equal["rank"] == own["rank"] | dynamo_comparison.EQUAL_TIMES


def with_prefixes(requests: int) -> Scenario:
    spec = ServingSpec().replaced(
        trace="agent-sessions", requests=requests, rate_per_s=2.0, device=DEVICE, prefix_caching="on",
        max_prompt_tokens=8192,
    )  # fmt: skip
    return spec.build(0)


def test_aisimulate_is_given_the_chunks_of_prompts(tmp_path: Path) -> None:
    served, path = with_prefixes(60).workload, tmp_path / "requests.jsonl"
    aisimulate_comparison.write_trace(served, path, 16)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    size = served.prefixes.chunk_tokens
    assert [len(line["hash_ids"]) for line in lines] == [math.ceil(line["input_length"] / size) for line in lines]
    offsets, chunks = served.prefixes.of_prompts(served.table["prompt_tokens"])
    full = [line["hash_ids"][: line["input_length"] // size] for line in lines]
    assert full == [chunks[offsets[r] : offsets[r + 1]].tolist() for r in range(len(lines))]
    last = [line["hash_ids"][-1] for line in lines if line["input_length"] % size]
    assert len(set(last)) == len(last) and min(last) > chunks.max()


def test_equal_times_of_aisimulate_add_up_to_our_iterations() -> None:
    recorded = Simulation(scenario(workload(200)), record_timeline=True)
    result = recorded.run()
    times = aisimulate_comparison.iteration_times(recorded)["timing_model"]
    engine = result.arrays.engines[0]
    mean_ms = 1e3 * float(engine["busy_s"] / engine["iterations"])
    assert times["type"] == "fixed" and 0 < times["decode_ms"] < mean_ms < times["decode_ms"] + times["prefill_ms"]

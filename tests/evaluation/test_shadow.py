"""What shadow says of logs whose truth is known: they are simulated on a device that it is not told of."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.engines.shadow_check import at_factors, factor_table
from servegym.baselines.registry import router, scheduler
from servegym.errors import DeploymentError, WorkloadError
from servegym.evaluation.measured.serving import scenario_of
from servegym.evaluation.shadow import GAIN, NOTHING_BESIDE, Candidate, Shadow, read_served, shadow
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.adapters import Adapters
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.runs.simulation import Simulation
from servegym.traces.reading import Reading

DEVICE = "a100-llama3-8b"
FACTOR, CLIENT_S = 1.3, 0.02
REQUESTS, RATE = 400, 7.0


def simulated_tdg(policy: str) -> tuple[float, list[dict[str, object]]]:
    """TDG ratio of the second half under a router, and the log that a proxy would have written."""
    profile, rng = load_profile(DEVICE), np.random.default_rng(1)
    columns = {
        "arrival_s": np.cumsum(rng.exponential(1 / RATE, REQUESTS)),
        "prompt_tokens": rng.integers(50, 3000, REQUESTS), "output_tokens": rng.integers(20, 300, REQUESTS),
        "ttft_slo_s": 1.0, "tpot_slo_s": 0.05,
    }  # fmt: skip
    workload = Workload.from_columns(columns)
    deployment = dataclasses.replace(profile.deployment(2), device=profile.device.times(FACTOR))
    vllm = scheduler("vllm-v1").with_settings(max_num_batched_tokens=2048, max_num_seqs=256)
    scenario = Scenario(workload, deployment, vllm, GAIN, router=router(policy), front_end=FrontEnd(request_s=CLIENT_S))
    table = Simulation(scenario).run().requests
    half = table[len(table) // 2 :]
    rows = [
        {
            "arrival_s": 1e9 + one.arrival_s, "prompt_tokens": one.prompt_tokens, "output_tokens": one.output_tokens,
            "ttft_s": one.ttft_s, "e2e_s": one.ttlt_s, "tokens_in_time": one.on_time_tokens, "outcome": "finished",
            "ttft_slo_s": 1.0, "tpot_slo_s": 0.05, "ttlt_slo_s": None, "router": policy, "engine": "0", "engines": 2,
        }
        for one in table.itertuples()
    ]  # fmt: skip
    return float(half["gain"].sum() / half["ideal_gain"].sum()), rows


def written(folder: Path, rows: list[dict[str, object]], more: str = "") -> Path:
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + more)
    return path


@pytest.fixture(scope="module")
def truth() -> dict[str, tuple[float, list[dict[str, object]]]]:
    return {policy: simulated_tdg(policy) for policy in ("round-robin", "min-load")}


@pytest.fixture(scope="module")
def found(truth: dict[str, tuple[float, list[dict[str, object]]]], tmp_path_factory: pytest.TempPathFactory) -> Shadow:
    path = written(tmp_path_factory.mktemp("log"), truth["round-robin"][1])
    candidates = [Candidate(router="min-load"), Candidate(router="round-robin")]
    return shadow(read_served(path), load_profile(DEVICE), candidates)


@pytest.mark.slow
def test_the_profile_is_found(found: Shadow) -> None:
    assert found.terms.factor == pytest.approx(FACTOR, rel=0.05)
    assert found.terms.client_s == pytest.approx(CLIENT_S, abs=0.015)


def test_what_ran_is_simulated_as_it_was(
    found: Shadow, truth: dict[str, tuple[float, list[dict[str, object]]]]
) -> None:
    assert found.measured.tdg == pytest.approx(truth["round-robin"][0], abs=1e-6)
    assert found.simulated.tdg == pytest.approx(found.measured.tdg, abs=0.02)
    assert found.simulated.ttft_s == pytest.approx(found.measured.ttft_s, rel=0.1)
    assert found.simulated.tpot_s == pytest.approx(found.measured.tpot_s, rel=0.05)


def test_what_another_gains_is_within_its_interval(
    found: Shadow, truth: dict[str, tuple[float, list[dict[str, object]]]]
) -> None:
    other, itself = found.others
    gained = truth["min-load"][0] - truth["round-robin"][0]
    assert gained > 0.01, "else this test says nothing"
    assert other.against.low - 0.02 < gained < other.against.high + 0.02
    assert itself.against.mean == 0 and not itself.beyond_error


def test_without_calibration_the_true_factor_gives_the_true_ratio(
    tmp_path: Path, truth: dict[str, tuple[float, list[dict[str, object]]]]
) -> None:
    tdg, rows = truth["round-robin"]
    found = at_factors(written(tmp_path, rows), DEVICE, (FACTOR, 1.1 * FACTOR))
    assert found[FACTOR] == pytest.approx(tdg, abs=0.02)  # but for the client's side, which it is not told of
    assert found[1.1 * FACTOR] < found[FACTOR] - 0.02
    assert factor_table({1.2: 0.8125}) == "| factor | 1.20 |\n| --- | --- |\n| TDG ratio | 0.812 |"


def test_only_what_came_since_the_last_change_counts(
    truth: dict[str, tuple[float, list[dict[str, object]]]], tmp_path: Path
) -> None:
    rows = [dict(row, router="gorouting") for row in truth["round-robin"][1][:100]] + truth["round-robin"][1][100:]
    rows[150] = dict(rows[150], outcome="client-gone")
    served = read_served(written(tmp_path, rows, '{"arrival_s": 5'))
    assert (len(served.run.requests), served.left_out, served.run.router) == (299, {"client-gone": 1}, "round-robin")
    assert served.run.requests["arrival_s"].iloc[0] == 0 and served.run.engines == 2
    last = read_served(written(tmp_path, rows), last_s=20.0)
    assert 100 < len(last.run.requests) < 250
    assert read_served(written(tmp_path, rows), engines=3, router="min-load").run.engines == 3


def test_adapters_take_their_time(truth: dict[str, tuple[float, list[dict[str, object]]]], tmp_path: Path) -> None:
    rows = [row | {"adapter": ("", "law", "code")[n % 3]} for n, row in enumerate(truth["round-robin"][1][:80])]
    path, profile, candidate = written(tmp_path, rows), load_profile(DEVICE), [Candidate(router="lora-affinity")]
    served = read_served(path, adapters=Adapters(1, load_s=1.0, activate_s=0.0))
    assert served.run.workload().table["adapter"].tolist()[:4] == [0, 1, 2, 0]
    near, far = (
        Simulation(scenario_of(run, profile, NOTHING_BESIDE)).run().requests["ttft_s"].mean()
        for run in (candidate[0].of(served.run), served.run)
    )
    assert near < far
    assert shadow(served, profile, candidate).others[0].label == "lora-affinity"
    with pytest.raises(DeploymentError, match=r"LoRA adapter 1, .* give its engines max_loras"):
        shadow(read_served(path), profile, candidate)


def test_a_log_with_other_names(truth: dict[str, tuple[float, list[dict[str, object]]]], tmp_path: Path) -> None:
    rows = truth["round-robin"][1]
    kept = ("arrival_s", "output_tokens", "ttft_s", "e2e_s", "ttft_slo_s", "tpot_slo_s")
    other = [{"usage": {"prompt": row["prompt_tokens"]}, **{name: row[name] for name in kept}} for row in rows]
    other[0] |= {"ttft_s": 0.9, "e2e_s": 1.8, "output_tokens": 10}  # 0.9 + 0.1 k <= 1 + 0.05 k
    path = written(tmp_path, other)
    with pytest.raises(WorkloadError, match=r"prompt_tokens is missing; a log has .* or --columns says"):
        read_served(path)
    served = read_served(path, engines=2, reading=Reading("prompt=usage.prompt"))
    known = read_served(written(tmp_path, rows))
    assert served.in_time[0] == 3 and (served.run.router, served.left_out) == ("min-load", {})
    assert served.in_time[1:].sum() == pytest.approx(known.in_time[1:].sum(), rel=0.1)
    assert served.run.requests["prompt_tokens"].tolist() == known.run.requests["prompt_tokens"].tolist()
    with pytest.raises(WorkloadError, match=r"has no field usage\.tokens, which --columns names for prompt_tokens"):
        read_served(written(tmp_path, other), reading=Reading("prompt=usage.tokens"))


def test_logs_that_are_none(tmp_path: Path, truth: dict[str, tuple[float, list[dict[str, object]]]]) -> None:
    for text, word in (
        ("x\n", "line 1 is no JSON"),
        ('{"a": 1}\n', "arrival_s is missing"),
        ("", "arrival_s is missing"),
    ):
        path = tmp_path / "log"
        path.write_text(text)
        with pytest.raises(WorkloadError, match=word):
            read_served(path)
    rows = truth["round-robin"][1]
    for name, cell, right in (
        ("ttft_s", "fast", "seconds"), ("ttft_s", -0.1, "finite seconds from 0 on, ttft_s <= e2e_s"),
        ("ttft_s", 1e3, "finite seconds from 0 on"), ("tpot_slo_s", "1_0", "a number"),
    ):  # fmt: skip
        wrong = [row | {name: cell} if number == 7 else row for number, row in enumerate(rows)]
        with pytest.raises(WorkloadError, match=f"row 8: {name} is .*; it should be {right}"):
            read_served(written(tmp_path, wrong))
    in_ms = [row | {name: 1e3 * float(row[name]) for name in ("arrival_s", "ttft_s", "e2e_s")} for row in rows]
    with pytest.raises(WorkloadError, match="more than 2 s a later token; give --time-unit, ms for times in milli"):
        read_served(written(tmp_path, in_ms))
    of_ms, known = (
        read_served(written(tmp_path, log), reading=Reading(time_unit=unit)).run.requests["ttft_s"].tolist()
        for log, unit in ((in_ms, "ms"), (rows, None))
    )
    assert of_ms == pytest.approx(known)
    with pytest.raises(WorkloadError, match="39 requests have finished"):
        read_served(written(tmp_path, truth["round-robin"][1][:39]))
    with pytest.raises(WorkloadError, match=r"nope:? cannot be read: No such file or directory$"):
        read_served(tmp_path / "nope")

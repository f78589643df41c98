"""Runs on a GPU without a GPU: what is planned, kept and packed, and an engine that is driven."""

import ast
import gc
import itertools
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.gpu import check_site, driving, pack_vllm
from experiments.gpu import served as served_script
from experiments.gpu.models import MODELS, config_of
from experiments.gpu.records import RUNS, Budget, Lines, coded, decoded, read_lines
from experiments.gpu.served import LOADS, Run, planned
from experiments.gpu.shapes import ON_A_CPU, SHAPES
from experiments.gpu.workloads import STOCK, artifact, profile_of, workload_of
from servegym.simulator.inputs.workload import Workload

ROOT = Path(__file__).parents[3]


def fails() -> dict:
    raise RuntimeError("out of memory")


def test_a_run_that_fails_leaves_a_line_and_is_tried_again(tmp_path: Path) -> None:
    lines = Lines(tmp_path, Budget(60.0), {"rehearsal": True})
    assert lines.attempt("a", 1.0, fails) is None
    assert (lines.attempt("b", 1.0, lambda: {"n": 1}) or {})["n"] == 1
    assert lines.attempt("c", 1.0, lambda: {"done": False, "n": 2}) is None
    assert lines.attempt("d", 100.0, lambda: {"n": 3}) is None  # too little time
    with (tmp_path / RUNS).open("a") as file:
        file.write('{"run": "e", "do')  # cut off
    again = Lines(tmp_path, Budget(60.0), {})
    assert [line["run"] for line in read_lines(tmp_path / RUNS)] == ["a", "b", "c"]
    assert list(again.found) == ["b"]
    assert (again.attempt("b", 1.0, fails) or {})["n"] == 1  # as it was: not run again
    assert (again.attempt("a", 1.0, lambda: {"n": 4}) or {})["n"] == 4


def test_arrays_come_back_from_a_line() -> None:
    arrays = {"arrival_s": np.array([0.5, np.nan]), "token_us": np.arange(5)}
    back = decoded(json.loads(json.dumps(coded(arrays))))
    for name, values in arrays.items():
        np.testing.assert_array_equal(back[name], values)


def test_the_most_telling_runs_come_first_and_none_twice() -> None:
    runs = list(planned(["azure-conv", "sharegpt"], LOADS, [STOCK, "expected-gain"], (0, 1)))
    assert len(set(runs)) == len(runs) == 2 + 2 * len(LOADS) * 2 * 2
    assert [run.load for run in runs[:3]] == [None, None, 1.4]
    assert [run.policy for run in runs[2:4]] == [STOCK, "expected-gain"]
    assert len({run.name for run in runs}) == len(runs)
    assert runs[0].name == Run("azure-conv", "expected-gain", 1.4, 1)._replace(load=None, policy=STOCK, seed=0).name


def test_shapes_are_models_that_there_are() -> None:
    assert {shape.model for shape, _ in SHAPES.values()} <= set(MODELS)
    assert set(ON_A_CPU) < set(SHAPES)
    for name in MODELS:
        big, tiny = config_of(name), config_of(name, tiny=True)
        assert set(big) == set(tiny) and tiny["hidden_size"] < big["hidden_size"]
    # 8.03 thousand million weights: Llama-3.1-8B
    config = config_of("llama-3.1-8b")
    head, kv = config["hidden_size"], config["num_key_value_heads"] * config["head_dim"]
    layer = 2 * head * (head + kv) + 3 * head * config["intermediate_size"]
    assert 2 * head * config["vocab_size"] + config["num_hidden_layers"] * layer == pytest.approx(8.03e9, rel=1e-3)


def test_turns_of_sessions_are_not_waited_for() -> None:
    workload = workload_of("chat-sessions", 20, None, 0, 4096, profile_of(None))
    assert workload.turns is None and workload.prefixes is not None
    assert (workload.table["arrival_s"] == 0.0).all()
    at_a_rate = workload_of("chat-sessions", 20, 2.0, 0, 4096, profile_of(None), most_output_tokens=100)
    assert at_a_rate.turns is None and at_a_rate.prefixes is not None
    arrival_s = at_a_rate.table["arrival_s"]
    assert arrival_s[0] == 0.0 and (np.diff(arrival_s) > 0.0).all()
    assert at_a_rate.table["output_tokens"].max() == 100


def test_policies_are_files_or_made(tmp_path: Path) -> None:
    workload = workload_of("azure-conv", 5, 2.0, 0, 4096, profile_of(None))
    assert artifact(STOCK, tmp_path, workload, profile_of(None)) is None
    made = artifact("slide-batching:gamma=2", tmp_path, workload, profile_of(None))
    assert made is not None and made.is_file()
    assert artifact(str(made), tmp_path, workload, profile_of(None)) == made


def test_a_profile_that_is_not_there_is_refused_before_the_engine_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_script, "start", lambda *_: pytest.fail("the engine was started"))
    with pytest.raises(SystemExit) as stopped:
        served_script.main(["--out", str(tmp_path), "--profile", "nowhere.json"])
    assert stopped.value.code == 2 and "nowhere.json" in capsys.readouterr().err.splitlines()[-1]


class Core:
    """An engine core whose steps give each request that runs a token."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.scheduler = SimpleNamespace(requests=self.left, running=[])

    def step_fn(self) -> tuple[dict, bool]:
        outputs = []
        for name in list(self.left):
            self.left[name] -= 1
            ended = self.left[name] == 0
            outputs.append(SimpleNamespace(request_id=name, new_token_ids=[1], finish_reason=ended or None))
            if ended:
                del self.left[name]
        return {0: SimpleNamespace(outputs=outputs)}, True

    def post_step(self, executed: bool) -> None:
        pass


class Meter:
    def __init__(self) -> None:
        self.core, self.numbers = Core(), itertools.count()

    def add(self, prompt: list[int], output_tokens: int, **asked: object) -> str:
        name = str(next(self.numbers))
        self.core.left[name] = output_tokens
        return name


WORKLOAD = Workload.from_columns({"arrival_s": [0.0, 0.0, 500.0], "prompt_tokens": 4, "output_tokens": [3, 1, 2]})


def served(until_s: float) -> driving.Served:
    clock, prompts = driving.Clock(), [[1] * 4] * 3
    return driving._served(Meter(), WORKLOAD, prompts, None, clock, until_s)  # type: ignore[arg-type]


def test_each_request_has_its_tokens_and_idle_time_is_skipped() -> None:
    found = served(np.inf)
    assert [len(times) for times in found.token_s] == [3, 1, 2]
    assert not found.cut and 500.0 <= found.token_s[2][0] < 501.0
    figures = found.figures(WORKLOAD)
    assert figures["finished"] == 3 and 500.0 <= figures["span_s"] < 501.0
    assert 0.0 <= figures["ttft_s"]["p99"] < 1.0
    arrays = found.arrays(WORKLOAD)
    assert np.cumsum(arrays["token_us"])[-1] == pytest.approx(1e6 * found.token_s[2][-1], abs=1)
    assert arrays["token_request"].tolist() == [0, 1, 0, 0, 2, 2]


def test_a_step_lasts_from_the_results_before_it_or_from_its_own_decision() -> None:
    now_s = [0.0]
    clock = SimpleNamespace(now_s=lambda: now_s[0])
    scheduler = SimpleNamespace(
        schedule=lambda tokens: SimpleNamespace(total_num_scheduled_tokens=tokens),
        update_from_output=lambda decision: decision.total_num_scheduled_tokens,
    )
    collecting_s = iter([0.0, 0.25, 0.25, 0.25, 0.75])  # asked for at the start and with each result
    log = driving.Log(scheduler, clock, lambda: next(collecting_s))  # type: ignore[arg-type]
    first = scheduler.schedule(5)
    now_s[0] = 1.0
    second, nothing = scheduler.schedule(6), scheduler.schedule(0)  # while the first is computed
    now_s[0] = 3.0
    assert scheduler.update_from_output(first) == 5
    now_s[0] = 4.0
    assert [scheduler.update_from_output(decision) for decision in (second, nothing)] == [6, 0]
    now_s[0] = 10.0  # nothing to do until then
    third = scheduler.schedule(7)
    now_s[0] = 12.0
    scheduler.update_from_output(third)
    steps = [(step.decision.total_num_scheduled_tokens, step.took_s, step.collecting_s) for step in log.steps]
    assert steps == [(5, 3.0, 0.25), (6, 1.0, 0.0), (7, 2.0, 0.5)]
    assert all(0.0 <= step.thread_s < 1.0 for step in log.steps)


def test_garbage_collection_is_timed() -> None:
    with driving.collections() as collecting_s:
        assert collecting_s() == 0.0
        gc.collect()
        assert collecting_s() > 0.0
    took_s = collecting_s()
    gc.collect()
    assert collecting_s() == took_s


def test_a_run_whose_time_is_up_says_so() -> None:
    found = served(-np.inf)
    assert found.cut and found.figures(WORKLOAD)["finished"] == 0
    assert np.isnan(found.arrival_s).all()
    assert len(found.arrays(WORKLOAD)["token_us"]) == 0


def test_what_the_machine_has_is_not_packed(tmp_path: Path) -> None:
    known = pack_vllm.there()
    carried = [name for name in map(pack_vllm.name_of, pack_vllm.own_requirements())
               if pack_vllm.is_carried(name, known)]  # fmt: skip
    assert "gymnasium" in carried and "numba" not in carried and "starlette" in carried
    assert not pack_vllm.is_carried("nvidia-cutlass-dsl", known) and not pack_vllm.is_carried("torch", known)
    dropped = pack_vllm.DROPPED.search
    assert dropped("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so") and dropped("vllm/vllm-rs")
    assert not dropped("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so") and not dropped("vllm/config/vllm.py")


def test_what_a_wheel_asks_for_there(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    lines = ["Requires-Dist: b[x]>=1", 'Requires-Dist: c; sys_platform == "win32"', 'Requires-Dist: d; extra == "e"',
             'Requires-Dist: f; python_version < "3.12"']  # fmt: skip
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", "\n".join(lines) + "\n")
    assert list(pack_vllm.asked_by(wheel, set())) == ["b[x]>=1"]
    assert list(pack_vllm.asked_by(wheel, {"e"})) == ["b[x]>=1", "d"]


def test_modules_that_are_checked_are_there() -> None:
    for name in check_site.MODULES:
        if name.startswith("servegym."):
            folder = ROOT / "/".join(name.split(".")[1:])
            assert folder.with_suffix(".py").is_file(), name


def test_the_scripts_are_python_of_the_machine() -> None:
    """It has 3.12: no syntax of a later one."""
    for path in (ROOT / "experiments" / "gpu").glob("*.py"):
        ast.parse(path.read_text("utf-8"), feature_version=(3, 12))

"""Recordings of behaviour: they cover what is registered, are the same each time, and show what differs."""

import json
from pathlib import Path

import numpy as np
import pytest

import servegym
from experiments.behaviour.__main__ import differing, main
from experiments.behaviour.cases import cases, simulated
from experiments.behaviour.fingerprint import of_values
from servegym.envs.registration import ENVIRONMENTS

pytestmark = pytest.mark.slow

FEW = (
    "scheduler/overload/edf", "scheduler/overload/edf:max_num_batched_tokens=96", "router/pairs/gorouting",
    "scaler/tiers/static/polyserve", "environment/EngineBatching-v0/random", "plugin/four/slide-batching",
)  # fmt: skip


def test_everything_that_is_registered_is_in_it() -> None:
    names = list(cases())
    assert len(names) >= 300
    for scheduler in servegym.scheduler_names():
        assert {f"scheduler/overload/{scheduler}", f"plugin/four/{scheduler}"} <= set(names)
    for router in servegym.router_names():
        assert f"router/four/{router}" in names
    for scaler in servegym.scaler_names():
        assert f"scaler/tiers/{scaler}/polyserve" in names
    for environment, _, _ in ENVIRONMENTS:
        assert {f"environment/{environment}/{agent}" for agent in ("base", "random", "vector")} <= set(names)


def test_a_recording_is_the_same_each_time_and_names_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: case for name, case in cases().items() if name in FEW}
    assert set(few) == set(FEW)
    monkeypatch.setattr("experiments.behaviour.__main__.cases", lambda: few)
    path = tmp_path / "before.json"
    assert main(["record", str(path)]) == 0
    document = json.loads(path.read_text())
    digests = document["cases"]
    assert set(digests) == set(FEW) and len(set(digests.values())) == len(FEW)
    assert all(len(digest) == 20 for digest in digests.values())  # none ended in an error
    capsys.readouterr()
    assert main(["compare", str(path)]) == 0
    assert capsys.readouterr().out == f"0 of {len(FEW)} cases differ\n"

    digests[FEW[0]], digests["scheduler/one/gone"] = "0" * 20, digests.pop(FEW[2])
    path.write_text(json.dumps(document))
    assert main(["compare", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[:-1]] == sorted([FEW[0], FEW[2], "scheduler/one/gone"])
    assert lines[-1] == "3 of 6 cases differ"
    assert main(["compare", str(path), "--only", "environment"]) == 0


def test_what_becomes_of_a_case() -> None:
    assert differing({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}) == {
        "b": "was 2, is 4", "c": "is no more", "d": "is new",
    }  # fmt: skip


def test_what_a_run_does_is_what_counts() -> None:
    assert simulated("one", scheduler="edf") == simulated(
        "one", scheduler="edf:max_num_batched_tokens=512"
    )  # the default
    assert simulated("one", scheduler="edf") != simulated("one", scheduler="edf:max_num_batched_tokens=511")


def test_numbers_count_and_not_their_types_or_words() -> None:
    assert of_values([np.int32([1, 2])]) == of_values([np.int64([1, 2])]) != of_values([np.int32([2, 1])])
    assert of_values([np.float32([0.5])]) == of_values([np.array([0.5])]) != of_values([np.array([0.5000001])])
    assert of_values([np.array(["both", "decode"])]) == of_values([np.array(["any", "out"], object)])
    assert of_values([1, 2]) != of_values([[1, 2]]) != of_values([2, 1])
    assert of_values([True]) != of_values([1.0])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["compare"], "compare what? Name the FILE.json of the recording"),
        (["record", "new.json", "--only", "nothing"], "--only nothing: no case has that in its name"),
        (["compare", "none.json"], "none.json: No such file or directory"),
        (["compare", "bad.json"], "bad.json: it should be what `record` has written"),
    ],
)
def test_wrong_input(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("[]")
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and problem in said.err

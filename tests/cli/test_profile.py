"""`servegym profile`."""

import importlib.util
import json

import pytest

from tests.adapters.profiling.conftest import one_thread
from tests.adapters.profiling.test_torch_operators import CONFIG

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures(one_thread.__name__)
SMALL = ("--batch-tokens", "64", "--sequences", "4", "--context-tokens", "128", "--kv-tokens", "1024")


def test_operators_are_measured_and_calibrated(servegym, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    arguments = ("profile", "--operators", "config.json", *SMALL, "--batches", "24", "--repeats", "2", "--out", "mine")
    done = servegym(*arguments, "--json", "-")
    document = done.document
    assert document["batches"] == 24
    assert {name: part["batches"] for name, part in document["regimes"].items()} == {
        "decode": 8, "prefill": 8, "mixed": 8,
    }  # fmt: skip
    assert document["facts"]["engine"] == "torch operators"
    assert "decode" in done.stderr
    before = (tmp_path / "mine/batches.csv").read_text()
    again = servegym(*arguments)
    assert again.status == 0, again.stderr
    assert (tmp_path / "mine/batches.csv").read_text() == before
    fitted = servegym("calibrate", "mine/batches.csv", "--form", "linear", "--name", "mine")
    assert fitted.status == 0 and " %\nwritten: results/calibrate/mine.json" in fitted.stdout, fitted.stderr
    assert "facts" in servegym(*arguments, "--dtype", "float32").refusal


@pytest.mark.parametrize(("arguments", "words"), [
    ((), ("--endpoint", "--engine", "--operators")),
    (("--endpoint", "http://127.0.0.1:9", "--engine", "vllm"), ("one of",)),
    (("--endpoint", "http://127.0.0.1:9"), ("127.0.0.1:9", "cannot be reached")),
    (("--endpoint", "http://127.0.0.1:9", "--model", "m"), ("127.0.0.1:9", "closed the connection")),
    (("--engine", "other", "--model", "m"), ("other", "vllm")),
    (("--engine", "vllm"), ("--model",)),
    (("--engine", "vllm", "--model", "./nothing"), ("./nothing", "config.json")),
    (("--operators", "nothing.json"), ("nothing.json", "cannot be read")),
    (("--operators", "config.json", "--torch-device", "nowhere"), ("nowhere",)),
    (("--operators", "config.json", "--dtype", "int8"), ("int8",)),
    (("--operators", "config.json", "--out", "config.json"), ("folder",)),
])  # fmt: skip
def test_wrong_values_are_told_on_one_line(servegym, tmp_path, arguments, words):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = servegym("profile", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_ctrl_c_says_how_to_go_on(servegym, tmp_path, monkeypatch):
    from servegym.adapters.profiling.torch_operators import TorchMeter

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    measure, calls = TorchMeter.measure, []

    def interrupted(meter, batch, repeats):
        calls.append(batch)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(meter, batch, repeats)

    monkeypatch.setattr(TorchMeter, "warm_up", lambda meter: None)
    monkeypatch.setattr(TorchMeter, "measure", interrupted)
    done = servegym("profile", "--operators", "config.json", *SMALL, "--batches", "6", "--out", "mine")
    assert done.status == 130
    assert "3 of 6 batches" in done.stderr
    assert len((tmp_path / "mine/batches.csv").read_text().splitlines()) == 4


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is there")
def test_without_vllm(servegym):
    assert "docs/engines.md" in servegym("profile", "--engine", "vllm", "--model", "somebody/some-model").refusal

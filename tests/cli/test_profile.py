"""`servegym profile`, with a device whose times are known; servers are measured in tests/adapters/profiling."""

import importlib.util

import pytest

from servegym.cli import profile
from tests.adapters.profiling.test_measuring import Meter

ENDPOINT = ("profile", "--endpoint", "http://127.0.0.1:9", "--out", "mine")


@pytest.fixture
def device(monkeypatch):
    """Makes `profile --endpoint` measure a `Meter` with these settings."""

    def measured(**settings):
        monkeypatch.setattr(profile, "meter_of", lambda *arguments: Meter(**settings))

    return measured


def test_batches_are_measured_and_calibrated(servegym, tmp_path, device):
    device()
    arguments = (*ENDPOINT, "--batches", "24", "--repeats", "3")
    done = servegym(*arguments, "--json", "-")
    document = done.document
    assert document["batches"] == 24
    assert {name: part["batches"] for name, part in document["regimes"].items()} == {
        "decode": 8, "prefill": 8, "mixed": 8,
    }  # fmt: skip
    assert document["facts"] == {"engine": "mine"}
    assert document["regimes"]["decode"]["median_spread"] == pytest.approx(0.3)
    assert "decode" in done.stderr
    before = (tmp_path / "mine/batches.csv").read_text()
    again = servegym(*arguments)
    assert again.status == 0, again.stderr
    assert (tmp_path / "mine/batches.csv").read_text() == before
    fitted = servegym("calibrate", "mine/batches.csv", "--form", "linear", "--name", "mine")
    assert fitted.status == 0 and " %\nwritten: results/calibrate/mine.json" in fitted.stdout, fitted.stderr
    device(name="other")
    assert "facts" in servegym(*arguments).refusal


@pytest.mark.parametrize(("arguments", "words"), [
    ((), ("--endpoint", "--engine")),
    (("--endpoint", "http://127.0.0.1:9", "--engine", "vllm"), ("one of",)),
    (("--endpoint", "http://127.0.0.1:9"), ("127.0.0.1:9", "cannot be reached")),
    (("--endpoint", "http://127.0.0.1:9", "--model", "m"), ("127.0.0.1:9", "closed the connection")),
    (("--engine", "other", "--model", "m"), ("other", "vllm")),
    (("--engine", "vllm"), ("--model",)),
    (("--engine", "vllm", "--model", "./nothing"), ("./nothing", "config.json")),
    (("--endpoint", "http://127.0.0.1:9", "--out", "a-file"), ("folder",)),
])  # fmt: skip
def test_wrong_values_are_told_on_one_line(servegym, tmp_path, arguments, words):
    (tmp_path / "a-file").touch()
    done = servegym("profile", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_ctrl_c_says_how_to_go_on(servegym, tmp_path, device):
    device(last=3)
    done = servegym(*ENDPOINT, "--batches", "6")
    assert done.status == 130
    assert "3 of 6 batches" in done.stderr
    assert len((tmp_path / "mine/batches.csv").read_text().splitlines()) == 4


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is there")
def test_without_vllm(servegym):
    assert "docs/engines.md" in servegym("profile", "--engine", "vllm", "--model", "somebody/some-model").refusal

"""`servegym shadow` and `servegym switch`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servegym.adapters.routing.clients import AdminKey
from servegym.adapters.routing.operation import Operation
from servegym.latency_models.profile import load_profile
from tests.adapters.routing.fakes import proxied
from tests.evaluation.test_shadow import DEVICE, simulated_tdg, written


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("log"), simulated_tdg("round-robin")[1])


def test_what_it_says(servegym: Callable[..., Any], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # names are on one line each
    profile = tmp_path / "mine.json"
    more = ("--router", "min-load", "--scheduler", "edf", "--json", "-", "--profile", str(profile))
    done = servegym("shadow", str(log), "--device", DEVICE, *more)
    document = done.document
    assert [one["label"] for one in document["others"]] == ["min-load", "edf"]
    assert "round-robin, measured" in done.stderr and "error of the simulated TDG ratio" in done.stderr
    assert load_profile(profile).device.coefficients.sum() > load_profile(DEVICE).device.coefficients.sum()


@pytest.mark.parametrize(("arguments", "word"), [
    (("nope.jsonl", "--device", DEVICE, "--router", "min-load"), "nope.jsonl"),
    (("nope.jsonl", "--device", "nope", "--router", "min-load"), "nope"),
    (("nope.jsonl", "--device", DEVICE, "--router", "x", "--scheduler", "edf"), "unknown router 'x'"),
    (("nope.jsonl", "--device", DEVICE, "--scheduler", "edf", "--max-loras", "4"), "lora_load_s and lora_activate_s"),
    (("nope.jsonl", "--device", DEVICE, "--router", "min-load", "--columns", "size=n"), "unknown column 'size'"),
    (("nope.jsonl", "--device", DEVICE), "--router NAME, or --scheduler NAME"),
    (("nope.jsonl", "--device", DEVICE, "--router", "min-load", "--every", "5", "--json", "-"), "leave one of"),
])  # fmt: skip
def test_wrong_input(servegym: Callable[..., Any], arguments: tuple[str, ...], word: str) -> None:
    assert word in servegym("shadow", *arguments).refusal


@pytest.mark.slow
def test_a_proxy_is_switched(servegym: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    operation = Operation(admin=AdminKey.of("admin"), device="h100-llama3-8b")
    with proxied(["http://127.0.0.1:9"], operation=operation) as proxy:
        assert "SERVEGYM_ADMIN_KEY is not set" in servegym("switch", proxy.url, "--router", "round-robin").stderr
        monkeypatch.setenv("SERVEGYM_ADMIN_KEY", "admin")
        done = servegym("switch", proxy.url, "--router", "round-robin")
        assert done.status == 0 and "round-robin" in done.stdout
        assert proxy.proxy.router.policy.label == "round-robin"
        for arguments, word in (
            ((proxy.url, "--router", "nope"), "the policy stays round-robin"),
            ((proxy.url,), "--policy ARTIFACT"),
            ((proxy.url, "--policy", "nope.json"), "nope.json"),
            (("http://127.0.0.1:9", "--router", "min-load"), "127.0.0.1:9"),
        ):
            assert word in servegym("switch", *arguments).refusal
        monkeypatch.setenv("SERVEGYM_ADMIN_KEY", "wrong")
        assert "admin" in servegym("switch", proxy.url, "--router", "min-load").stderr

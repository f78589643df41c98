"""Settings of the plug-in, versions, and what is said without vLLM."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import servegym.adapters.vllm
from servegym.adapters.vllm.settings import Settings, read_settings
from servegym.adapters.vllm.step_log import StepLog
from servegym.adapters.vllm.versions import PARTS, check_version, counted_on, parts_of, preempt, watch_chunks
from servegym.errors import VllmError

FILE = "a file that is there"


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.json"
    path.write_text("{}")
    return str(path)


def test_the_environment_comes_before_additional_config(policy: str) -> None:
    config = {"servegym": {"policy": "elsewhere.json", "enforce": "order", "metrics_port": 9100}}
    environment = {"SERVEGYM_POLICY": policy, "SERVEGYM_DECISION_LIMIT_S": "0.002", "SERVEGYM_CORRECT": "0"}
    settings = read_settings(config, environment)
    assert settings == Settings(policy, "", "order", 0.002, False, "", 9100)


@pytest.mark.parametrize(("config", "environment", "said"), [
    ({}, {}, "no policy: set SERVEGYM_POLICY"),
    ({"servegym": 3}, {}, "should be an object"),
    ({"servegym": {"polcy": "x"}}, {}, "no 'polcy'"),
    ({"servegym": {"policy": "nowhere.json"}}, {}, "should be the file of an artifact"),
    ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_ENFORCE": "force"}, "one of exact, order"),
    ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_DECISION_LIMIT_S": "soon"}, "'soon'; it should be a number"),
    ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_DECISION_LIMIT_S": "nan"}, "should be above 0"),
    ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_CORRECT": "maybe"}, "should be 1 or 0"),
    ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_METRICS_PORT": "99999"}, "should be a port"),
    ({"servegym": {"metrics_port": [1]}}, {"SERVEGYM_POLICY": FILE}, "should be a whole number"),
])  # fmt: skip
def test_wrong_settings_are_one_line(config: dict, environment: dict, said: str, policy: str) -> None:
    environment = {name: policy if value == FILE else value for name, value in environment.items()}
    with pytest.raises(VllmError, match=said) as caught:
        read_settings(config, environment)
    assert "\n" not in str(caught.value)


def test_a_step_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(VllmError, match="cannot be written"):
        StepLog(str(tmp_path / "no folder" / "steps.jsonl"))


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVEGYM_ANY_VLLM", raising=False)
    assert check_version("0.32.0+cpu") == "0.32.0+cpu"
    for version in ("0.27.3", "0.29.0", "1.0.0"):
        with pytest.raises(VllmError, match=f"tested with vLLM 0.26, 0.28, 0.32, 0.33, and this is {version}"):
            check_version(version)
    monkeypatch.setenv("SERVEGYM_ANY_VLLM", "1")
    assert check_version("0.34.0") == "0.34.0"


@pytest.mark.parametrize(
    ("version", "first"),
    [("0.26.0", "0.26"), ("0.27.1", "0.26"), ("0.28.0", "0.28"), ("0.33.0+cpu", "0.28"), ("1.2", "0.28"),
     ("0.1.dev1+g1", "0.28"), ("dev", "0.28"), (None, "0.28")],
)  # fmt: skip
def test_the_parts_of_a_version_are_those_of_the_newest_that_is_not_newer(version: str | None, first: str) -> None:
    assert parts_of(version) == PARTS[first]


class Scheduler26:
    """What of vLLM 0.26's scheduler is not as it was later."""

    need_mamba_block_aligned_split = False

    def _mamba_block_aligned_split(self, request: object, tokens: int, *found: int) -> int:
        return tokens // 16 * 16

    def _preempt_request(self, request: SimpleNamespace, timestamp: float) -> None:
        request.status = "PREEMPTED"


@pytest.mark.parametrize(("own", "tokens"), [(False, 39), (True, 31)])  # its own rule holds where it asked before
def test_vllm_0_26_is_made_to_ask_for_chunks(own: bool, tokens: int) -> None:
    scheduler = Scheduler26()
    scheduler.need_mamba_block_aligned_split = own
    watch_chunks(scheduler, PARTS["0.26"], lambda request, n: n - 1)
    assert scheduler.need_mamba_block_aligned_split
    assert scheduler._mamba_block_aligned_split("r", 40) == tokens
    assert scheduler._mamba_block_aligned_split("r", 40, 7, 0) == tokens


def test_later_ones_ask_by_themselves() -> None:
    scheduler = SimpleNamespace(_reserve_prefill_lookahead=lambda request, cached, tokens: tokens - cached)
    watch_chunks(scheduler, PARTS["0.28"], lambda request, n: n - 1)
    assert scheduler._reserve_prefill_lookahead("r", 7, 40) == 32
    nothing = SimpleNamespace()
    watch_chunks(nothing, PARTS["0.28"], lambda request, n: n - 1)  # of a vLLM that has no such method
    assert vars(nothing) == {}


@pytest.mark.parametrize(("resumes", "left", "counted"), [(False, (1, 0), 6), (True, (0, 1), 5)])
def test_in_vllm_0_26_what_is_under_way_is_dropped_only_where_a_request_resumes_at_once(
    resumes: bool, left: tuple[int, int], counted: int
) -> None:
    request = SimpleNamespace(num_output_tokens=5, num_output_placeholders=1, async_tokens_to_discard=0)
    preempt(Scheduler26(), PARTS["0.26"], request, resumes)
    assert (request.num_output_placeholders, request.async_tokens_to_discard) == left
    assert counted_on([request], PARTS["0.26"], np.array([9])) == [counted]


@pytest.mark.parametrize(("stale", "dropped", "counted"), [(0, False, 5), (1, False, 6), (1, True, 5)])
def test_what_comes_stale_is_counted_unless_it_is_dropped(stale: int, dropped: bool, counted: int) -> None:
    request = SimpleNamespace(
        num_output_tokens=5, num_output_placeholders=0, num_stale_output_tokens=stale, drop_stale_output=dropped
    )
    assert counted_on([request], PARTS["0.28"], np.array([6])) == [counted]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_it_says_so_when_it_is_used() -> None:
    with pytest.raises(VllmError, match="needs vLLM, which is not installed"):
        servegym.adapters.vllm.Scheduler  # noqa: B018


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Schedule'"):
        servegym.adapters.vllm.Schedule  # noqa: B018

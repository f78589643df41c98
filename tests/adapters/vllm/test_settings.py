"""Settings of the plug-in, versions, and what is said without vLLM."""

import importlib.util
from pathlib import Path

import pytest

import servegym.adapters.vllm
from servegym.adapters.vllm.settings import Settings, read_settings
from servegym.adapters.vllm.step_log import StepLog
from servegym.adapters.vllm.versions import check_version
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


@pytest.mark.parametrize(
    ("config", "environment", "said"),
    [
        ({}, {}, "no policy: set SERVEGYM_POLICY"),
        ({"servegym": 3}, {}, "should be an object"),
        ({"servegym": {"polcy": "x"}}, {}, "no 'polcy'"),
        ({"servegym": {"policy": "nowhere.json"}}, {}, "should be the file of an artifact"),
        ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_ENFORCE": "force"}, "one of exact, order"),
        (
            {},
            {"SERVEGYM_POLICY": FILE, "SERVEGYM_DECISION_LIMIT_S": "soon"},
            "'soon'; it should be a number",
        ),
        ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_DECISION_LIMIT_S": "nan"}, "should be above 0"),
        ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_CORRECT": "maybe"}, "should be 1 or 0"),
        ({}, {"SERVEGYM_POLICY": FILE, "SERVEGYM_METRICS_PORT": "99999"}, "should be a port"),
        ({"servegym": {"metrics_port": [1]}}, {"SERVEGYM_POLICY": FILE}, "should be a whole number"),
    ],
)
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
        with pytest.raises(VllmError, match=f"tested with vLLM 0.28, 0.32, 0.33, and this is {version}"):
            check_version(version)
    monkeypatch.setenv("SERVEGYM_ANY_VLLM", "1")
    assert check_version("0.34.0") == "0.34.0"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_it_says_so_when_it_is_used() -> None:
    with pytest.raises(VllmError, match="needs vLLM, which is not installed"):
        servegym.adapters.vllm.Scheduler  # noqa: B018


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Schedule'"):
        servegym.adapters.vllm.Schedule  # noqa: B018

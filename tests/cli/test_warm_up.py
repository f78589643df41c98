"""`servegym warm-up`."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from servegym.baselines.registry import router, scheduler
from servegym.cli import warm_up
from servegym.cli.app import app
from servegym.envs.registration import NAMES
from servegym.errors import EnvError
from servegym.simulator.compilation.kernels import Compiled
from servegym.simulator.policies.gains import tdg
from servegym.simulator.runs.loops import LOOPS


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(warm_up, "play_a_little", names.append)
    monkeypatch.setattr(warm_up, "serve_a_little", lambda: names.append("policies"))
    return names


def test_all_environments_or_those_that_are_named(played: list[str]) -> None:
    done = CliRunner().invoke(app, ["warm-up"])
    assert done.exit_code == 0 and played == ["policies", *NAMES]
    assert f"{played[0]}: ready (1 of {len(played)}, 0.0 s)" in done.output
    played.clear()
    CliRunner().invoke(app, ["warm-up", "servegym:TierScaling-v0", "policies"])
    assert played == ["TierScaling-v0", "policies"]


def test_an_environment_that_there_is_not(played: list[str]) -> None:
    done = CliRunner().invoke(app, ["warm-up", "ClusterRouting-v0", "Clusters"])
    assert isinstance(done.exception, EnvError) and not played
    assert str(done.exception).startswith("no environment 'Clusters'; there are EngineBatching-v0, ")


def test_what_runs_need() -> None:
    """The loops, and the functions of all policies, latency models and gains that ship."""
    kernels = list(warm_up.shipped_kernels())
    assert set(LOOPS) | {scheduler("edf").function, router("min-load").function, tdg} <= set(kernels)
    assert all(isinstance(kernel, Compiled) for kernel in kernels)


def test_an_environment_that_has_a_later_version_is_no_warning() -> None:
    """Gymnasium calls it out of date; of ours both versions are kept. Other warnings are shown."""
    code = (
        "import warnings\n"
        "import gymnasium as gym\n"
        "gym.make('servegym:ClusterRouting-v0', disable_env_checker=True)\n"
        "warnings.warn('another')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "another" in done.stderr and "out of date" not in done.stderr


def test_what_it_plays() -> None:
    warm_up.play_a_little("ClusterRouting-v0")

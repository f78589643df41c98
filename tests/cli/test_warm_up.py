"""`servegym warm-up`."""

import pytest
from typer.testing import CliRunner

from servegym.cli import warm_up
from servegym.cli.app import app
from servegym.envs.registration import NAMES
from servegym.errors import EnvError


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(warm_up, "play_a_little", names.append)
    return names


def test_all_environments_or_those_that_are_named(played: list[str]) -> None:
    done = CliRunner().invoke(app, ["warm-up"])
    assert done.exit_code == 0 and played == list(NAMES)
    assert f"{played[0]} is ready (1 of {len(played)}, 0.0 s)" in done.output
    played.clear()
    CliRunner().invoke(app, ["warm-up", "servegym:TierScaling-v0", "ClusterRouting-v0"])
    assert played == ["TierScaling-v0", "ClusterRouting-v0"]


def test_an_environment_that_there_is_not(played: list[str]) -> None:
    done = CliRunner().invoke(app, ["warm-up", "ClusterRouting-v0", "Clusters"])
    assert isinstance(done.exception, EnvError) and not played
    assert str(done.exception).startswith("no environment 'Clusters'; there are EngineBatching-v0, ")


def test_what_it_plays() -> None:
    warm_up.play_a_little("ClusterRouting-v0")

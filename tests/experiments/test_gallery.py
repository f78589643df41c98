"""The gallery: its pages are those of the registry, and its films show what they say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, features

from experiments.gallery import films
from experiments.gallery.pages import gallery
from experiments.gallery.players import BASES, base_agent, players_of
from servegym.envs.registration import ENVIRONMENTS
from servegym.envs.rendering.picture import FAINT, PAPER, font
from servegym.envs.rendering.words import policy_name

FOLDER = Path(__file__).parents[2] / "docs/gallery"
SHORT: dict[str, Any] = {"requests": 8}
needs_avif = pytest.mark.skipif("avif" not in features.get_supported(), reason="this Pillow writes no AVIF")


def test_the_pages_are_what_the_command_writes() -> None:
    pages = gallery(json.loads((FOLDER / "scores.json").read_text("utf-8")))
    assert set(pages) == {"index.md", *(f"{name}.md" for name, _, _ in ENVIRONMENTS)}
    for file, text in pages.items():
        assert (FOLDER / file).read_text("utf-8") == text, "make docs"


@pytest.mark.parametrize("name", BASES)
def test_each_page_has_its_film_small_in_bytes(name: str) -> None:
    assert 10_000 < (FOLDER / f"{name}.avif").stat().st_size < 500_000


@needs_avif
@pytest.mark.parametrize("name", BASES)
def test_each_film_is_drawn_as_frames_are_today(name: str) -> None:
    first = next(films.frames_of(FOLDER / f"{name}.avif")).astype("i4")
    left, right = (films.shots(player.name, player.episode(name, 0), np.zeros(1))[0] for player in players_of(name))
    assert np.abs(first - np.asarray(films.beside(left, right))).max() <= films.MOST_OFF, "make gallery"


@needs_avif
def test_a_film_shows_both_players_at_the_same_times(tmp_path: Path) -> None:
    films.film("ClusterRouting-v0", tmp_path / "film.avif", frames=3, **SHORT)
    frames = [frame.astype("i4") for frame in films.frames_of(tmp_path / "film.avif")]
    assert len(frames) == 3 and frames[0].shape == (films.HEAD + films.HEIGHT, 2 * films.WIDTH + 8, 3)
    assert np.abs(frames[0] - frames[-1]).max() > 100
    left, right = frames[-1][:, : films.WIDTH], frames[-1][:, films.WIDTH + 8 :]
    assert np.abs(left - right).max() > 100  # names, at least


def counted(n: int) -> Image.Image:
    """A small grey number on white, the only thing that changes from frame to frame."""
    picture = Image.new("RGB", (640, 360), PAPER)
    ImageDraw.Draw(picture).text((20, 20), f"{n} requests have come, {n // 3} are finished", FAINT, font(9))
    return picture


@needs_avif
def test_small_words_of_a_film_are_those_that_were_drawn(tmp_path: Path) -> None:
    drawn = [counted(161 + 31 * k) for k in range(8)]
    films.write(drawn, tmp_path / "film.avif")
    last = list(films.frames_of(tmp_path / "film.avif"))[-1].astype("i4")
    assert np.abs(last - np.asarray(drawn[-1])).max() <= films.MOST_OFF
    assert np.abs(last - np.asarray(drawn[-2])).max() > films.MOST_OFF
    with pytest.raises(ValueError, match=r"film.avif: frame \d is \d+ of 255 off what was drawn; it should be"):
        films.write(drawn, tmp_path / "film.avif", quality=1)


def test_an_episode_is_the_same_one_for_both_and_ends() -> None:
    found = []
    for player in players_of("EngineBatching-v0"):  # an agent, and a scheduler that plays by itself
        *_, (last, _) = player.episode("EngineBatching-v0", 0, **SHORT)
        assert last.ended and last.arrays.status[0].finished == 8
        found.append(last.scenario.workload.table.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", BASES)
def test_a_player_bears_the_name_of_the_policy_that_plays(name: str) -> None:
    for player in players_of(name):
        scenario = next(player.episode(name, 0, **SHORT)).simulation.scenario
        if player.agent is base_agent:
            assert player.name in {
                policy_name(one) for one in (scenario.scheduler, scenario.router, scenario.scaler) if one
            }


def test_what_is_measured() -> None:
    score = films.measured("TierScaling-v0", episodes=2, **SHORT)
    mean, low, high = score["difference"]
    assert low <= mean <= high and mean == pytest.approx(score["other"] - score["base"])
    assert 0 < score["base"] <= 1


def test_an_environment_that_none_is_named_for_is_played_at_random() -> None:
    assert players_of("New-v0")[1].name == "legal actions at random"

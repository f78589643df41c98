"""The gallery: its pages are those of the registry, and its films show what they say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.gallery import films
from experiments.gallery.pages import gallery
from experiments.gallery.players import BASES, players_of
from servegym.envs.registration import ENVIRONMENTS

FOLDER = Path(__file__).parents[2] / "docs/gallery"
SHORT: dict[str, Any] = {"requests": 8}


def test_the_pages_are_what_the_command_writes() -> None:
    pages = gallery(json.loads((FOLDER / "scores.json").read_text("utf-8")))
    assert set(pages) == {"index.md", *(f"{name}.md" for name, _, _ in ENVIRONMENTS)}
    for file, text in pages.items():
        assert (FOLDER / file).read_text("utf-8") == text, "make docs"


@pytest.mark.parametrize("name", BASES)
def test_each_page_has_its_film_small_in_bytes(name: str) -> None:
    assert 10_000 < (FOLDER / f"{name}.avif").stat().st_size < 500_000


def test_a_film_shows_both_players_at_the_same_times(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    if "avif" not in pytest.importorskip("PIL.features").get_supported():
        pytest.skip("this Pillow writes no AVIF")
    films.film("ClusterRouting-v0", tmp_path / "film.avif", frames=3, **SHORT)
    with image.open(tmp_path / "film.avif") as film:
        assert film.n_frames == 3 and film.size == (2 * films.WIDTH + 8, films.HEAD + films.HEIGHT)
        frames = []
        for k in range(3):
            film.seek(k)
            frames.append(np.asarray(film.convert("RGB"), "i4"))
    assert np.abs(frames[0] - frames[-1]).max() > 100
    left, right = frames[-1][:, : films.WIDTH], frames[-1][:, films.WIDTH + 8 :]
    assert np.abs(left - right).max() > 100  # names, at least


def test_an_episode_is_the_same_one_for_both_and_ends() -> None:
    found = []
    for player in players_of("EngineBatching-v0"):  # an agent, and a scheduler that plays by itself
        *_, (last, _) = player.episode("EngineBatching-v0", 0, **SHORT)
        assert last.ended and last.arrays.status[0].finished == 8
        found.append(last.scenario.workload.table.tobytes())
    assert found[0] == found[1]


def test_what_is_measured() -> None:
    score = films.measured("TierScaling-v0", episodes=2, **SHORT)
    mean, low, high = score["difference"]
    assert low <= mean <= high and mean == pytest.approx(score["other"] - score["base"])
    assert 0 < score["base"] <= 1


def test_an_environment_that_none_is_named_for_is_played_at_random() -> None:
    assert players_of("New-v0")[1].name == "legal actions at random"

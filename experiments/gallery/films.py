"""An animation of two players on one episode, what the two gain on many, and a picture of one moment."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gallery.players import Moment, players_of
from servegym.envs.rendering import rgb_array
from servegym.envs.rendering.picture import CHOSEN, INK, PAPER, font
from servegym.envs.rendering.scene import tdg_ratio
from servegym.evaluation.intervals import student_interval
from servegym.simulator.runs.simulation import Simulation

WIDTH, HEIGHT, HEAD = 880, 495, 56  # of one player's picture, and of the line above it, in pixels
FRAMES, FRAME_MS, LAST_MS = 24, 600, 3000
# Of AVIF. At faster speeds (7, of 0 to 10) small grey words stay as they were in earlier frames, at this quality too.
# A film so coded has a third of the bytes of a lossless WebP, and takes half a minute.
AVIF = {"quality": 75, "speed": 4, "subsampling": "4:4:4"}
MOST_OFF = 100  # of 255, a pixel of a frame from what was drawn; where a word is an earlier one it is more
STILL_S = 25.0
EPISODES = 20


def film(environment: str, path: Path, frames: int = FRAMES, seed: int = 0, **words: Any) -> None:
    """Write the episode of a seed, under base policy (left) and other player (right) at the same times, as AVIF."""
    players = players_of(environment)
    ends_s = [last(player.episode(environment, seed, **words)).arrays.status[0].now_s for player in players]
    times_s = np.linspace(0.0, max(ends_s), frames)
    sides = [shots(player.name, player.episode(environment, seed, **words), times_s) for player in players]
    pictures = [beside(left, right) for left, right in zip(*sides, strict=True)]
    write(pictures, path)


def write(pictures: list[Any], path: Path, **coding: Any) -> None:
    """Write an animation. coding: options of AVIF other than `AVIF`. Raises ValueError if a frame is not as drawn."""
    lengths = [FRAME_MS] * (len(pictures) - 1) + [LAST_MS]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=lengths, loop=0, **{**AVIF, **coding})
    for k, (written, drawn) in enumerate(zip(frames_of(path), pictures, strict=True)):
        if (off := np.abs(written.astype("i4") - np.asarray(drawn)).max()) > MOST_OFF:
            raise ValueError(f"{path}: frame {k} is {off} of 255 off what was drawn; it should be {MOST_OFF} at most")


def frames_of(path: Path) -> Iterator[np.ndarray]:
    """The frames of an animation, each uint8[height, width, 3]."""
    from PIL import Image, ImageSequence

    with Image.open(path) as film:
        for frame in ImageSequence.Iterator(film):
            yield np.asarray(frame.convert("RGB"))


def still(path: Path, seed: int = 0) -> None:
    """Write what the base policy of EngineBatching-v0 has before it at its first decision from STILL_S on."""
    from PIL import Image

    episode = players_of("EngineBatching-v0")[0].episode("EngineBatching-v0", seed)
    moment = next(one for one in episode if one.simulation.arrays.status[0].now_s >= STILL_S)
    Image.fromarray(rgb_array(moment.simulation, **moment.shown())).save(path, optimize=True)


def measured(environment: str, episodes: int = EPISODES, **words: Any) -> dict[str, Any]:
    """TDG ratios of the two on the same episodes, and the mean difference with its 95 % interval (Student)."""
    ratios = [
        np.array([tdg_ratio(last(player.episode(environment, seed, **words))) for seed in range(episodes)])
        for player in players_of(environment)
    ]
    more = student_interval(ratios[1] - ratios[0])
    return {
        "episodes": episodes,
        "base": float(ratios[0].mean()),
        "other": float(ratios[1].mean()),
        "difference": list(more),
    }


def last(episode: Iterator[Moment]) -> Simulation:
    """The simulation when an episode is over."""
    (moment,) = deque(episode, maxlen=1)
    return moment.simulation


def shots(name: str, episode: Iterator[Moment], times_s: np.ndarray) -> list[Any]:
    """What an episode shows at its first decision at or after each time; at its end from then on."""
    moment = next(episode)
    pictures: list[Any] = []
    for at_s in times_s:
        moved = not pictures
        while moment.simulation.arrays.status[0].now_s < at_s and (later := next(episode, None)) is not None:
            moment, moved = later, True
        pictures.append(shot(name, moment) if moved else pictures[-1])
    return pictures


def shot(name: str, moment: Moment) -> Any:
    """One player's picture below its name and what it has gained so far."""
    from PIL import Image, ImageDraw

    frame = rgb_array(moment.simulation, **moment.shown())

    picture = Image.new("RGB", (WIDTH, HEAD + HEIGHT), PAPER)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, WIDTH, HEAD), CHOSEN)
    draw.text((14, HEAD // 2), name, INK, font(26, True), "lm")
    draw.text((WIDTH - 14, HEAD // 2), f"TDG ratio so far {tdg_ratio(moment.simulation):.3f}", INK, font(26), "rm")
    picture.paste(Image.fromarray(frame).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS), (0, HEAD))
    return picture


def beside(left: Any, right: Any) -> Any:
    from PIL import Image

    both = Image.new("RGB", (2 * WIDTH + 8, HEAD + HEIGHT), INK)
    both.paste(left, (0, 0))
    both.paste(right, (WIDTH + 8, 0))
    return both

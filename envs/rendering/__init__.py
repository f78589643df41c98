"""Renders a simulation as a picture or as text, for people who watch an environment.

Both show one engine (its KV memory, its batch, its requests and their deadlines), or the engines of a cluster side by
side and the router's next decision. They show the TDG ratio of the episode and what schedulers and routers can know, so
never the output length of an unfinished request. `scene.py` defines the parts of a picture, `engine.py` and
`cluster.py` describe a simulation with them, and `picture.py` and `text.py` draw any such description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from servegym.envs.rendering.scene import Scene
    from servegym.simulator.runs.simulation import Simulation


def scene_of(simulation: Simulation, engine: int | None = None, action: str = "", slots: Sequence[int] = ()) -> Scene:
    """Describe the simulation as it is now.

    engine: index of the engine to show; None: the whole cluster, or its only engine. action: the last action in words.
    slots: the request in each slot of the next action. Raises EnvError for an unknown engine.
    """
    if engine is None and len(simulation.arrays.engines) > 1:
        from servegym.envs.rendering.cluster import cluster_scene

        return cluster_scene(simulation, action)
    from servegym.envs.rendering.engine import engine_scene

    return engine_scene(simulation, engine or 0, action, slots)


def ansi(
    simulation: Simulation, engine: int | None = None, colour: bool = False, action: str = "", slots: Sequence[int] = ()
) -> str:
    """Render the scene as text of at most 100 columns, with ANSI colour codes if `colour`."""
    from servegym.envs.rendering.text import scene_text

    return scene_text(scene_of(simulation, engine, action, slots), colour)


def rgb_array(
    simulation: Simulation, engine: int | None = None, action: str = "", slots: Sequence[int] = ()
) -> np.ndarray:
    """Render the scene as a picture, uint8[720, 1280, 3]."""
    from servegym.envs.rendering.picture import scene_picture

    return scene_picture(scene_of(simulation, engine, action, slots))

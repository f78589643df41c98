"""Pictures and texts of a simulation, for people who watch an environment.

Both show one engine (its KV memory, its batch, its requests and their deadlines), or, of a cluster, its engines side by
side and what its router is about to decide. They show what schedulers and routers can know, so no output lengths of
requests that are being served, and the TDG ratio of the episode. `scene.py` has what a picture consists of,
`engine.py` and `cluster.py` describe a simulation so, and `picture.py` and `text.py` draw any such description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from servegym.envs.rendering.scene import Scene
    from servegym.simulator.runs.simulation import Simulation


def scene_of(simulation: Simulation, engine: int | None = None, action: str = "", slots: Sequence[int] = ()) -> Scene:
    """What there is to see of the simulation as it stands now.

    engine: the one to be shown; None: the only one, or the cluster as a whole. action: the last one, in words.
    slots: the request in each slot of the next one. Raises EnvError for an engine that there is not.
    """
    if engine is None and len(simulation.arrays.engines) > 1:
        from servegym.envs.rendering.cluster import cluster_scene

        return cluster_scene(simulation, action)
    from servegym.envs.rendering.engine import engine_scene

    return engine_scene(simulation, engine or 0, action, slots)


def ansi(
    simulation: Simulation,
    engine: int | None = None,
    colour: bool = False,
    action: str = "",
    slots: Sequence[int] = (),
) -> str:
    """The scene as text of at most 100 columns, with ANSI colour codes if `colour`."""
    from servegym.envs.rendering.text import written

    return written(scene_of(simulation, engine, action, slots), colour)


def rgb_array(
    simulation: Simulation, engine: int | None = None, action: str = "", slots: Sequence[int] = ()
) -> np.ndarray:
    """uint8[720, 1280, 3]: the scene as a picture."""
    from servegym.envs.rendering.picture import drawn

    return drawn(scene_of(simulation, engine, action, slots))

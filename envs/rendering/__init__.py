"""Pictures and texts of a simulation, for people who watch an environment.

Both show one engine (its KV memory, its batch, its requests and their deadlines), or, of a cluster, its engines side by
side and what its router is about to decide. They show what schedulers and routers can know, so no output lengths of
requests that are being served, and the TDG ratio of the episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from servegym.simulator.runs.simulation import Simulation


def ansi(
    simulation: Simulation,
    engine: int | None = None,
    colour: bool = False,
    action: str = "",
    slots: Sequence[int] = (),
) -> str:
    """The simulation as text of at most 100 columns, as it stands now.

    engine: the one to be shown; None: the only one, or the cluster as a whole. colour: with ANSI colour codes.
    action: the last one, in words. slots: the request in each slot of the next one.
    Raises EnvError for an engine that there is not.
    """
    from servegym.envs.rendering import text

    if _is_cluster(simulation, engine):
        from servegym.envs.rendering.cluster import cluster_scene

        return text.cluster_text(cluster_scene(simulation, action), colour)
    from servegym.envs.rendering.engine import engine_scene

    return text.engine_text(engine_scene(simulation, engine or 0, action, slots), colour)


def rgb_array(
    simulation: Simulation, engine: int | None = None, action: str = "", slots: Sequence[int] = ()
) -> np.ndarray:
    """uint8[720, 1280, 3]: the simulation as a picture, as it stands now. Arguments and errors as of `ansi`."""
    if _is_cluster(simulation, engine):
        from servegym.envs.rendering.cluster import cluster_scene
        from servegym.envs.rendering.cluster_picture import draw_cluster

        return draw_cluster(cluster_scene(simulation, action))
    from servegym.envs.rendering.engine import engine_scene
    from servegym.envs.rendering.engine_picture import draw_engine

    return draw_engine(engine_scene(simulation, engine or 0, action, slots))


def _is_cluster(simulation: Simulation, engine: int | None) -> bool:
    return engine is None and len(simulation.arrays.engines) > 1

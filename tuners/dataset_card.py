"""The card of a dataset: what is in it, which agent acted in which environment, its returns, and how to read it."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servegym.evaluation.markdown import narrow_header, row

if TYPE_CHECKING:
    from minari import MinariDataset

CARD = "README.md"


def write_card(dataset: MinariDataset, seeds: range, scenarios: Any) -> Path:
    """Write the card into the dataset's folder; returns its path. scenarios: the spec that episodes were drawn from."""
    path = Path(dataset.storage.data_path).parent / CARD
    path.write_text(card(dataset, seeds, scenarios), "utf-8")
    return path


def card(dataset: MinariDataset, seeds: range, scenarios: Any) -> str:
    """The card as Markdown."""
    from servegym import __version__

    ratios, steps = returns_of(dataset)
    spec = dataset.env_spec
    rows = {
        "environment": f"`servegym:{spec.id}`" if spec is not None else "not registered",
        "agent": f"`{dataset.storage.metadata.get('algorithm_name')}`",
        "episodes, steps": f"{len(ratios)}, {int(steps.sum())} ({int(steps.min())} to {int(steps.max())} an episode)",
        "TDG ratio of an episode (its sum of rewards)": f"mean {ratios.mean():.4f}, {ratios.min():.4f} to "
        f"{ratios.max():.4f}",
        "seeds of the episodes": f"{seeds[0]} to {seeds[-1]}",
        "observations": f"`Box{dataset.observation_space.shape}`, {dataset.observation_space.dtype}",
        "actions": f"`{dataset.action_space}`",
        "made with": f"servegym {__version__}, Python {platform.python_version()}, NumPy {np.__version__}",
    }
    lines = [
        f"# {dataset.id}", "", "Episodes of LLM serving, simulated. No real requests are in it: lengths and times are "
        "drawn from public traces (those below).", "", *narrow_header("", ""),
        *(row(name, value) for name, value in rows.items()), "",
        "Each step has in its infos the base policy's action, the action mask where actions are choices, gain, TDG "
        "ratio and time. The same seeds on the same scenarios give the same bytes.", "",
        "```python", "import minari", "", f'dataset = minari.load_dataset("{dataset.id}")',
        "for episode in dataset.iterate_episodes():",
        "    episode.observations, episode.actions, episode.rewards, episode.infos", "```", "",
        "Minari looks for it in the folder that `MINARI_DATASETS_PATH` names.", "", "## Scenarios", "",
        "```json", json.dumps(scenarios, indent=1), "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def returns_of(dataset: MinariDataset) -> tuple[np.ndarray, np.ndarray]:
    """float64[episodes] each: the sum of rewards, and the number of steps."""
    rewards = [episode.rewards for episode in dataset.iterate_episodes()]
    return np.array([one.sum() for one in rewards]), np.array([len(one) for one in rewards])

"""The environment: an episode is a task, a step scores a program."""

import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from servegym.evaluation.scoring.evolution import evaluated, settings_of

from ..models import ProgramAction, ScoreObservation

FOLDER = Path(__file__).resolve().parents[1] / "tasks"
TASKS = tuple(sorted(path.parent.name for path in FOLDER.glob("*/task.yaml")))
SPLIT = "train"
ATTEMPTS = 8


class SearchEnvironment(Environment[ProgramAction, ScoreObservation, State]):
    """Programs of one task, `attempts` of them. The reward of a step is the `combined_score` of its program."""

    SUPPORTS_CONCURRENT_SESSIONS = True  # sessions share the process that scores, one program at a time

    def __init__(self) -> None:
        super().__init__()
        self._state, self._task, self._attempts, self._best = State(), "", 0, 0.0

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | None = None,
        split: str = SPLIT,
        index: int | None = None,
        attempts: int = ATTEMPTS,
        **ignored: Any,
    ) -> ScoreObservation:
        """Begin with a task by name, by index, or by seed. Raises ValueError, IndexError for one there is not."""
        if task is None:
            task = self.get_task(split, (seed or 0) % len(TASKS) if index is None else index)["id"]
        if task not in TASKS:
            raise ValueError(f"there is no task {task}; there are {', '.join(TASKS)}")
        self._task, self._attempts, self._best = task, attempts, 0.0
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        words, program = ((FOLDER / task / name).read_text("utf-8") for name in ("README.md", "initial_program.py"))
        return ScoreObservation(task=task, instructions=words, program=program, reward=0.0)

    def step(self, action: ProgramAction, timeout_s: float | None = None, **ignored: Any) -> ScoreObservation:
        """Score a program. Raises ValueError before a reset, and after the last attempt."""
        if self._state.step_count >= self._attempts:
            raise ValueError("the episode is over; reset begins another")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.py"
            path.write_text(action.program, "utf-8")
            answer = evaluated(path, settings_of(FOLDER / self._task))
        score, texts = answer.pop("combined_score"), answer.pop("artifacts")
        self._state.step_count += 1
        self._best = max(self._best, score)
        return ScoreObservation(
            task=self._task,
            refused=bool(answer.pop("refused")),
            best=self._best,
            feedback=texts["feedback"],
            metrics=answer,
            reward=score,
            done=self._state.step_count >= self._attempts,
        )

    @property
    def state(self) -> State:
        return self._state

    def list_splits(self) -> list[str]:
        return [SPLIT]

    def num_tasks(self, split: str) -> int:
        return len(self.list_tasks(split))

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        if split != SPLIT:
            raise ValueError(f"there is no split {split}; there is {SPLIT}")
        return [{"id": task, "index": index, "split": SPLIT} for index, task in enumerate(TASKS)]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return self.list_tasks(split)[index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        return self.list_tasks(split)[start:stop]

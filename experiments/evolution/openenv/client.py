"""Client of the environment."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

from .models import ProgramAction, ScoreObservation

MESSAGE_TIMEOUT_S = 3600.0  # a server's first score compiles kernels; one that hangs ends by its own limit


class SearchEnv(EnvClient[ProgramAction, ScoreObservation, State]):
    """Connect to a server: `with SearchEnv(base_url="http://127.0.0.1:8000").sync() as env: env.reset()`."""

    def __init__(self, *arguments: Any, message_timeout_s: float = MESSAGE_TIMEOUT_S, **options: Any) -> None:
        super().__init__(*arguments, message_timeout_s=message_timeout_s, **options)

    def _step_payload(self, action: ProgramAction) -> dict[str, Any]:
        return {"program": action.program}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ScoreObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = ScoreObservation(**payload.get("observation", {}) | {"reward": reward, "done": done})
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)

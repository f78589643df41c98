"""Action and observation of the environment."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class ProgramAction(Action):
    """A program to score."""

    program: str = Field(description="The whole text of a Python file that registers one policy, as the seed does")


class ScoreObservation(Observation):
    """What is known of the last program; `reward` is its score. After reset: the task and its seed program."""

    task: str = Field(default="", description="Name of the task")
    instructions: str = Field(default="", description="What a program decides and can read; after reset")
    program: str = Field(default="", description="The seed program; after reset")
    refused: bool = Field(default=False, description="Whether the program could not be scored; its reward is 0")
    best: float = Field(default=0.0, description="Highest reward of the episode")
    feedback: str = Field(default="", description="Where the program loses most, or why it was refused")
    metrics: dict[str, float] = Field(default_factory=dict, description="Figures of the score, by name")

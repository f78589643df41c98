"""Search for LLM serving policies: an OpenEnv environment of five tasks. A step scores a program."""

from .client import SearchEnv
from .models import ProgramAction, ScoreObservation

__all__ = ["ProgramAction", "ScoreObservation", "SearchEnv"]

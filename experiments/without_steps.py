"""Schedulers as papers print them: their batches take all that fits the time budget, whatever the device's steps.

Claims, and the studies that were measured before `steps=device` became the default, run schedulers in this way.
"""

from servegym.baselines.registry import scheduler
from servegym.policy import Policy


def without_steps(text: str) -> str:
    """Name a scheduler with `steps=ignore`, if it has that parameter and the text sets neither it nor `step_tokens`.

    text: "name" or "name:key=value,...". Raises PolicyError for an unknown name or parameter.
    """
    policy = scheduler(text)
    if {"steps", "step_tokens"} & set(policy.settings) or "steps" not in policy.chosen():
        return text
    return f"{text}{',' if ':' in text else ':'}steps=ignore"


def scheduler_without_steps(text: str) -> Policy:
    """The scheduler that `without_steps` names. Raises PolicyError."""
    return scheduler(without_steps(text))

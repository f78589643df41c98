"""Families whose requests change their kind over time: so many of one family, then as many of another, by turns."""

from __future__ import annotations

import dataclasses

import numpy as np

from servegym.traces.families import FAMILIES
from servegym.traces.trace import Trace


@dataclasses.dataclass(frozen=True)
class ByTurns:
    """Requests of several families by turns, `requests` of each at a time. Requests say their family as application."""

    families: tuple[str, ...]
    requests: int

    def draw(self, family: str, requests: int, seed: int, most_prompt: float, most_total: float) -> Trace:
        """Draw requests as `generate` does."""
        drawn = [FAMILIES[name].draw(name, requests, seed, most_prompt, most_total) for name in self.families]
        turn = np.arange(requests) // self.requests % len(drawn)
        return Trace(
            name=family,
            prompt_tokens=np.choose(turn, [trace.prompt_tokens for trace in drawn]),
            output_tokens=np.choose(turn, [trace.output_tokens for trace in drawn]),
            given={"application": turn.astype("i4")},
            labels={"application": self.families},
            provenance={
                "format": "generated",
                "rows": requests,
                "dropped_rows": 0,
                "notes": [],
                "family": family,
                "source": f"{self.requests} requests by turns: "
                + ", then ".join(f"{trace.name} ({trace.provenance['source']})" for trace in drawn),
            },
        )


FAMILIES.register("code-and-writing")(ByTurns(("azure-code", "uniform-512-512"), 3000))

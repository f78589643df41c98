"""Sampling of episodes from a sample with sessions: whole sessions, in a row or at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.memory.prefixes import Prompts


class SessionRows:
    """The requests of a sample by session.

    turns: of the sample's requests, in the order of a workload: those that begin sessions first.
    """

    def __init__(self, turns: SessionDependencies) -> None:
        session = turns.session
        self.turns = turns
        self.by_session = np.argsort(session, kind="stable")  # of each session its first request, then its turns
        self.sessions = int(np.count_nonzero(turns.after < 0))
        self.ends = np.cumsum(np.bincount(session, minlength=self.sessions))

    def part(self, first: int, end: int) -> np.ndarray:
        """int64[...]: the rows of the sessions from `first` to before `end`, in the order of a workload."""
        return np.sort(self.by_session[self._start(first) : self._start(end)])

    def _start(self, session: int) -> int:
        return int(self.ends[session - 1]) if session > 0 else 0

    def draw(self, rng: np.random.Generator, requests: int, shuffled: bool) -> np.ndarray:
        """int64[requests]: the rows of sessions with so many requests in all; of the last session the first ones.

        shuffled: any sessions; otherwise sessions in a row, from one drawn so that there are enough.
        """
        if shuffled:
            order = rng.permutation(self.sessions)
        else:
            # The last first session that has so many requests from it on.
            last = int(np.searchsorted(self.ends, self.ends[-1] - requests, side="right"))
            order = np.arange(int(rng.integers(last + 1)), self.sessions)
        rows = [self.by_session[self._start(session) : self.ends[session]] for session in order[:requests].tolist()]
        return np.concatenate(rows)[:requests]


def arranged(
    table: np.ndarray,
    turns: SessionDependencies,
    prefixes: Prompts | None,
    rows: np.ndarray,
    arrivals: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, SessionDependencies, Prompts | None]:
    """The requests of these rows as a workload has them, with other arrivals, their turns and prompts.

    arrivals: takes the rows of the requests that begin sessions (WORKLOAD[sessions]) and returns when, s.
    """
    taken, follow = table[rows], turns.take(rows)
    begins = follow.after < 0
    times_s = arrivals(taken[begins])
    taken["arrival_s"] = np.nan
    taken["arrival_s"][begins] = times_s
    order = follow.order(taken["arrival_s"])
    return taken[order], follow.take(order), None if prefixes is None else prefixes.take(rows[order])

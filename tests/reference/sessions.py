"""Gains of sessions that end by their deadlines: docs/session_rules.md, "Sessions as a whole", and docs/gains.md."""

from .requests import Request


def session_gains(requests: list[Request]) -> list[float]:
    """Return the gain of each request under `session-slo`; a session's gain is that of its first request."""
    return [earned(requests, first) if first.after < 0 else 0.0 for first in requests]


def earned(requests: list[Request], first: Request) -> float:
    members = [r for r in requests if begins(requests, r) is first]
    if any(r.finish_s is None for r in members):
        return 0.0
    ended_s = max(r.set_out_s[-1] for r in members)
    deadline_s = first.arrival_s + max(due_s(requests, r) for r in members)
    return first.weight if ended_s <= deadline_s else 0.0


def begins(requests: list[Request], r: Request) -> Request:
    return r if r.after < 0 else begins(requests, requests[r.after])


def due_s(requests: list[Request], r: Request) -> float:
    """Return the time from the session's arrival to the end of r, if r and those before it just meet their SLOs."""
    slo_s = r.ttft_slo_s + (r.output_tokens - 1) * r.tpot_slo_s if r.interactive else r.ttlt_slo_s
    before_s = 0.0 if r.after < 0 else due_s(requests, requests[r.after]) + r.think_s
    return before_s + slo_s

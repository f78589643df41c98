"""When requests arrive, are sent, are ready and end: docs/sessions.md and docs/feature_rules.md."""

from .front_end import FrontEnd
from .requests import INF, Request


class Front:
    """Clients that send requests. max_concurrency, clients: None: any number."""

    def __init__(
        self, requests: list[Request], clients: int | None, max_concurrency: int | None, front_end: FrontEnd
    ) -> None:
        self.requests, self.clients, self.max_concurrency = requests, clients, max_concurrency
        self.depends = not (clients is None and max_concurrency is None and all(r.after < 0 for r in requests))
        self.sent: set[int] = set()
        self.front_end = front_end
        self.entering: list[Request] = []  # sent and not ready, in the order sent
        self.now_s = 0.0
        for r in requests:
            r.arrival_s -= front_end.way_back_s

    def session_of(self, r: Request) -> int:
        """Return the index of the first request of its session."""
        while r.after >= 0:
            r = self.requests[r.after]
        return r.index

    def ends_s(self, r: Request) -> float:
        """Return when the client has its last token, or learns that there will be none."""
        if r.refused_s is not None:
            return r.refused_s + self.front_end.way_back_s
        return INF if r.finish_s is None else r.set_out_s[-1] + self.front_end.way_back_s

    def comes_s(self, r: Request) -> float:
        return r.comes_s if r.after < 0 else self.ends_s(self.requests[r.after]) + r.think_s

    def unfinished(self) -> set[int]:
        return {r.index for r in self.requests if self.ends_s(r) > self.now_s}

    def next(self) -> Request | None:
        """Return the request that is sent next, of all that may be."""
        if self.max_concurrency is not None and len(self.unfinished() & self.sent) >= self.max_concurrency:
            return None
        begins = True  # whether another session may
        if self.clients is not None:
            under_way = {self.session_of(self.requests[i]) for i in self.unfinished()} & self.sent
            begins = len(under_way) < self.clients
        waiting = [
            r for r in self.requests if r.index not in self.sent and r.refused_s is None and self.comes_s(r) < INF
        ]
        may_be_sent = [r for r in waiting if begins or r.after >= 0]
        return min(may_be_sent, key=lambda r: (self.comes_s(r), r.index), default=None)

    def refuse(self, r: Request, now_s: float) -> list[Request]:
        """Refuse r and all requests after it in its session. Returns them, those that follow it first."""
        gone = [r]
        for one in gone:
            one.refused_s = now_s
            followers = [other for other in self.requests if other.after == one.index]
            for other in followers:
                other.ready_s, other.arrival_s = now_s, now_s - self.front_end.way_back_s
            gone += followers
        return gone

    def next_s(self) -> float:
        """Return when the next request is sent, is ready, or has ended."""
        r = self.next()
        ends = [self.ends_s(r) for r in self.requests] if self.depends else []
        return min(
            [INF if r is None else self.comes_s(r)]
            + [r.ready_s for r in self.entering]
            + [s for s in ends if self.now_s < s]
        )

    def send(self, now_s: float) -> Request | None:
        """Send all requests that have arrived, and return the next one that is ready."""
        while (r := self.next()) is not None and self.comes_s(r) <= now_s:
            self.sent.add(r.index)
            if r.after >= 0:
                before = self.requests[r.after]
                computed = before.prompt_tokens - before.cached_tokens + before.output_tokens
                r.session_tokens = before.session_tokens + computed
            if self.depends:
                r.arrival_s = now_s - self.front_end.way_back_s
            r.ready_s = self.front_end.request(r, now_s)
            self.entering.append(r)
        r = min(self.entering, key=lambda r: r.ready_s, default=None)
        if r is None or r.ready_s > now_s:
            return None
        self.entering.remove(r)
        return r

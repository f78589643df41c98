"""What comes and when it is sent: docs/sessions.md."""

from .requests import INF, Request


class Front:
    """max_concurrency, clients: None: any number."""

    def __init__(self, requests: list[Request], clients: int | None, max_concurrency: int | None) -> None:
        self.requests, self.clients, self.max_concurrency = requests, clients, max_concurrency
        self.depends = not (clients is None and max_concurrency is None and all(r.after < 0 for r in requests))
        self.sent: set[int] = set()

    def session_of(self, r: Request) -> int:
        """The index of the request with which it begins."""
        while r.after >= 0:
            r = self.requests[r.after]
        return r.index

    def comes_s(self, r: Request) -> float:
        if r.after < 0:
            return r.ready_s
        finish_s = self.requests[r.after].finish_s
        return INF if finish_s is None else finish_s + r.think_s

    def next(self) -> Request | None:
        """The one that is sent next of all that may be."""
        unfinished = {r.index for r in self.requests if r.finish_s is None}
        if self.max_concurrency is not None and len(unfinished & self.sent) >= self.max_concurrency:
            return None
        begins = True  # whether another session may
        if self.clients is not None:
            under_way = {self.session_of(self.requests[i]) for i in unfinished} & self.sent
            begins = len(under_way) < self.clients
        waiting = [r for r in self.requests if r.index not in self.sent and self.comes_s(r) < INF]
        may_be_sent = [r for r in waiting if begins or r.after >= 0]
        return min(may_be_sent, key=lambda r: (self.comes_s(r), r.index), default=None)

    def next_s(self) -> float:
        r = self.next()
        return INF if r is None else self.comes_s(r)

    def send(self, now_s: float) -> Request | None:
        """The next one that has come arrives."""
        r = self.next()
        if r is None or self.comes_s(r) > now_s:
            return None
        self.sent.add(r.index)
        if self.depends:
            r.arrival_s = now_s
        return r

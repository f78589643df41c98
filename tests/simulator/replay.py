"""Replaying a recorded timeline in plain Python, checking each line against the rules of docs/simulation.md.

Whatever the policies, a line that could not have happened is an AssertionError; what happened comes back as batches.
"""

import numpy as np

from servegym.simulator.records.types import (
    ARRIVAL,
    BATCH_END,
    BATCH_START,
    DEPARTED,
    DRAINED,
    EVICTED,
    FAILED,
    FINISH,
    FOUND,
    HELD,
    LOADED,
    MOVED,
    OFF,
    POOL,
    RECALLED,
    RECEIVED,
    RESUMED,
    RETURNED,
    ROLE,
    ROLES,
    SCHEDULED,
    SENT,
    STARTED,
    STOPPED,
    SUSPENDED,
    TOKEN,
)
from servegym.simulator.runs.simulation import Simulation
from tests.simulator.replayed_engines import ReplayedEngines
from tests.simulator.replayed_run import Batch, Replay

# What comes before what at one instant.
ENDS, SUSPENSIONS, RECEIPTS, ROUTING, STARTS = range(5)
PART_OF_INSTANT = {
    TOKEN: ENDS, FINISH: ENDS, BATCH_END: ENDS, DEPARTED: ENDS, SUSPENDED: SUSPENSIONS, RECEIVED: RECEIPTS,
    FAILED: ROUTING, RETURNED: ROUTING, DRAINED: ROUTING, MOVED: ROUTING, RECALLED: ROUTING, HELD: ROUTING,
    OFF: ROUTING, STARTED: ROUTING, ROLE: ROUTING, ARRIVAL: ROUTING, EVICTED: STARTS, FOUND: STARTS, LOADED: STARTS,
    BATCH_START: STARTS, SCHEDULED: STARTS, RESUMED: STARTS,
}  # fmt: skip


def replay(simulation: Simulation) -> Replay:
    """The recorded timeline of a simulation, checked line by line."""
    lines = simulation.arrays.timeline[: simulation.arrays.status[0].timeline_used]
    return _Replayer(simulation, lines).play()


class _Replayer(ReplayedEngines):
    """The same with what lies between engines."""

    def play(self) -> Replay:
        handlers = {
            ARRIVAL: self.arrive, EVICTED: self.evict, BATCH_START: self.start, SCHEDULED: self.schedule,
            FOUND: self.find, LOADED: self.load, TOKEN: self.token, FINISH: self.finish, BATCH_END: self.end,
            DEPARTED: self.depart, RECEIVED: self.receive, SUSPENDED: self.suspend, RESUMED: self.resume,
            FAILED: self.fail,
            RETURNED: self.come_back, DRAINED: self.drain, MOVED: self.move, RECALLED: self.recall, HELD: self.hold,
            SENT: self.send, STOPPED: self.stop_sending, OFF: self.go_off, STARTED: self.end_loading,
            ROLE: self.change_role,
        }  # fmt: skip
        assert (np.diff(self.lines["time_s"]) >= 0).all(), "time went backward"
        check_order_within_instants(self.lines)
        forming: Batch | None = None  # its SCHEDULED lines follow BATCH_START at once
        for line in self.lines:
            if forming is not None and line.kind != SCHEDULED:
                self.formed(forming)
                forming = None
            assert not self.departing or line.kind == DEPARTED, "prefilled, and still here"
            assert not self.recalling or line.kind in (RECALLED, STOPPED), "not taken back"
            if line.time_s > self.now_s:
                self.link.settle()
                self.pass_time(float(line.time_s))
            if PART_OF_INSTANT.get(int(line.kind), ENDS) >= ROUTING:
                self.link.join_all()
            handlers[int(line.kind)](line)
            if line.kind == BATCH_START:
                forming = self.running[line.engine]
        if forming is not None:
            self.formed(forming)
        assert not self.departing and not self.recalling
        self.link.settle()
        return self.log

    def depart(self, line: np.record) -> None:
        e, r = int(line.engine), int(line.request)
        assert r == self.departing.pop(0), "not the next to leave"
        assert line.tokens == self.blocks[e][r] and self.emitted[r] == self.sent[r] + 1 and self.kept[r] == 0
        self.queues[e].remove(r)
        self.source[r] = e
        self.link.leaves(r, self.computed[r], float(line.time_s))

    def send(self, line: np.record) -> None:
        d, r = int(line.engine), int(line.request)
        assert r in self.source and self.roles[d] == "decode" and self.up[d] and not self.off[d]
        self.link.begins(r, d, self.computed[r], int(line.tokens), float(line.value), float(line.time_s))
        assert self.blocks_in_use(d) <= self.pools[d].total_blocks

    def stop_sending(self, line: np.record) -> None:
        self.link.stops(int(line.request), int(line.engine))

    def receive(self, line: np.record) -> None:
        d, r = int(line.engine), int(line.request)
        assert line.tokens == self.blocks[d][r]
        del self.blocks[self.source.pop(r)][r]
        self.held.discard(r)
        self.queues[d].append(r)
        self.log.route[r].append(d)
        self.link.arrived(r, d, float(line.time_s))

    # Incidents and moves

    def fail(self, line: np.record) -> None:
        e = int(line.engine)
        assert line.tokens == len(self.queues[e])
        if not self.up[e]:
            return
        self.lose_all(e, float(line.time_s))
        self.up[e] = False
        self.log.failures_at[e] += 1

    def lose_all(self, e: int, now_s: float) -> None:
        self.take_back_all(e, now_s)
        self.recalling += [(e, r) for r in sorted(self.source) if self.source[r] == e]
        if self.stores[e] is not None:
            self.stores[e].clear()
        if self.caches[e] is not None:
            self.caches[e].filled = set()

    def take_back_all(self, e: int, now_s: float) -> None:
        lost = [self.stop(e, now_s)] if self.running[e] is not None else []
        for batch in [*lost, *self.suspended[e].values()]:
            batch.lost = True
            for entry in batch.entries:
                self.log.unfinished_tokens[entry.request] += entry.tokens
        self.suspended[e] = {}
        self.recalling = [(e, r) for r in self.queues[e]]
        if self.engines == 1:  # they stay, and there is no line for each
            for _, r in self.recalling:
                self.lose(e, r)
            self.recalling = []

    def lose(self, e: int, r: int) -> None:
        """Request r has nothing computed any more."""
        lost = self.computed[r] + self.kept[r] * (not self.borrowed[r])
        self.log.lost_tokens[r] += lost
        self.log.lost_at[e] += lost
        self.computed[r] = self.kept[r] = 0
        self.borrowed[r] = False
        self.blocks[e].pop(r, None)

    def come_back(self, line: np.record) -> None:
        self.up[line.engine], self.drained[line.engine] = True, False

    def drain(self, line: np.record) -> None:
        self.drained[line.engine] = True

    def move(self, line: np.record) -> None:
        e = int(line.engine)
        assert self.tier[e] != line.tokens
        if self.startups[e] is not None:
            if self.tier[e] == POOL:
                self.ready_at[e] = line.time_s + self.startups[e].seconds
                self.off[e] = self.ready_at[e] > line.time_s
        elif self.tier[e] == POOL and self.up[e]:
            self.log.moves_at[e] += 1
            self.take_back_all(e, float(line.time_s))
        self.tier[e] = int(line.tokens)

    def go_off(self, line: np.record) -> None:
        e = int(line.engine)
        assert self.startups[e] is not None and self.tier[e] == POOL and line.tokens == len(self.queues[e])
        self.ready_at[e], self.off[e] = np.inf, True
        if self.up[e]:
            self.log.moves_at[e] += 1
            self.lose_all(e, float(line.time_s))

    def end_loading(self, line: np.record) -> None:
        assert self.off[line.engine] and self.ready_at[line.engine] == line.time_s, "it is not ready"
        self.off[line.engine] = False

    def change_role(self, line: np.record) -> None:
        e, role = int(line.engine), ROLES[line.tokens]
        seconds = self.pools[e].role_change_s
        assert seconds is not None and {role, self.roles[e]} == {"prefill", "decode"}
        assert not self.queues[e] and not self.blocks[e] and e not in self.source.values(), "it has something left"
        self.roles[e], self.role_ready_s[e] = role, line.time_s + seconds

    def recall(self, line: np.record) -> None:
        e, r = int(line.engine), int(line.request)
        assert self.recalling.pop(0) == (e, r), "not the next to be taken back"
        self.lose(e, r)
        self.log.recalled_at[e] += 1
        self.log.reroutes[r] += 1
        if self.source.pop(r, None) is not None:
            self.held.discard(r)
        else:
            self.queues[e].remove(r)
        self.at_router[r] = float(line.time_s)


def check_order_within_instants(lines: np.ndarray) -> None:
    """Ends, suspensions, arrivals of KV, routing, starts; ends and starts by engine. (KV is sent at any of these.)

    What takes no time makes another turn at the same instant: KV sent at once, a round that suspends at once, a task
    of which rounding has left nothing when it is resumed.
    """
    lines = lines[~np.isin(lines["kind"], (SENT, STOPPED))]
    part = np.array([PART_OF_INSTANT[kind] for kind in lines["kind"].tolist()], int)
    same = np.diff(lines["time_s"]) == 0
    back = same & (np.diff(part) < 0)
    before, after = lines["kind"][:-1], lines["kind"][1:]
    again = (after == RECEIVED) & (part[:-1] == ROUTING) | (after == SUSPENDED)
    again |= (before == RESUMED) & np.isin(after, (TOKEN, BATCH_END))
    assert again[back].all(), "not in the order of an instant"
    for k in (ENDS, SUSPENSIONS, STARTS):
        both = same & (part[1:] == k) & (part[:-1] == k)
        assert (np.diff(lines["engine"])[both] >= 0).all(), "engines not in order"

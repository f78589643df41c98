"""The router at work: "Routing" and "Holding" of docs/cluster_rules.md."""

from typing import TYPE_CHECKING

from .incidents import stop, take_back_all
from .log import Move, StuckError
from .requests import Request
from .roles import give_role

if TYPE_CHECKING:
    from .simulation import Simulation

MOST_STARTS = 100_000


class RouterAtWork:
    """The requests that have come to the router, and those that wait there."""

    def __init__(self, sim: "Simulation", tiers: int) -> None:
        self.sim = sim
        self.just_now: list[Request] = []  # that went to the router at this instant
        self.lines: list[list[Request]] = [[] for _ in range(tiers + 1)]  # one for best effort after those of the tiers
        self.held_cursor = len(self.lines)  # the line that is asked; after the last one: none
        self.held_dirty = False
        self.starts = 0  # engines that the scaler has moved out of the pool since a token came out

    @property
    def held(self) -> int:
        return sum(len(line) for line in self.lines)

    def work(self, now_s: float) -> None:
        """Do the router's part of an instant."""
        self.held_dirty = self.held_dirty or self.sim.router_state.hears_at(now_s)
        if self.held:
            self.sim.router_state.apply_signals(now_s)
        while self.ask_next(now_s):
            pass

    def ask_next(self, now_s: float) -> bool:
        """Ask for the next request, if there is one."""
        if self.just_now:
            r = self.just_now.pop(0)
            self.put(r, self.place(r, now_s), now_s)
        elif self.held_dirty:
            self.held_dirty, self.held_cursor = False, 0
        elif self.held_cursor < len(self.lines):
            self.ask_line(now_s)
        elif (r := self.sim.front.send(now_s)) is not None:
            self.put(r, self.place(r, now_s), now_s)
        else:
            return False
        return True

    def ask_line(self, now_s: float) -> None:
        """Ask for the first request in the line."""
        number = self.held_cursor
        line = self.lines[number]
        if not line:
            self.held_cursor += 1
            return
        r = line[0]
        to = self.place(r, now_s, number)
        if to == number:
            self.held_cursor = number + 1
        else:
            line.remove(r)
            self.put(r, to, now_s)

    def put(self, r: Request, line: int | None, now_s: float) -> None:
        if line is not None:
            self.lines[line].append(r)
            self.sim.moves.append(Move("held", now_s, r.index, -1))

    def place(self, r: Request, now_s: float, held_in: int | None = None) -> int | None:
        """Send r somewhere (None), or name the line where it is held."""
        sim = self.sim
        if len(sim.engines) == 1:
            sim.send(r, 0, now_s)
            return None
        taking = sim.router_state.taking(r)
        if (
            r.decode_engine is not None
            and r.kv_at is not None
            and sim.router_state.snapshots[r.decode_engine] in taking
        ):
            sim.send(r, r.decode_engine, now_s)
            return None
        if not taking:
            return r.tier if held_in is None else held_in
        sim.router_state.apply_signals(now_s)
        route = sim.router.route(r, taking, now_s)
        if route.refused:
            assert r.emitted == 0 and route.tier is None
            for one in sim.front.refuse(r, now_s):
                sim.moves.append(Move("refused", now_s, one.index, -1))
            return None
        if route.engine is None:
            return r.tier if route.line is None else route.line
        assert sim.router_state.snapshots[route.engine] in taking or (
            route.tier is not None and sim.router_state.snapshots[route.engine].pending
        )
        if route.tier is not None:
            self.move(route.engine, route.tier, now_s)
            self.close(route.engine, False)
        if r.kv_at is None:
            r.decode_engine = route.decode_engine
        sim.send(r, route.engine, now_s)
        return None

    def move(self, engine: int, tier: int | None, now_s: float) -> None:
        """Move an engine into a tier, or (by a scaler) into the pool."""
        machine = self.sim.engines[engine]
        if tier == machine.tier:
            return
        was, machine.tier = machine.tier, tier
        self.sim.moves.append(Move("moved", now_s, -1, engine))
        if machine.startup_s is not None and tier is None:
            stop(self.sim, machine, now_s)
        elif machine.startup_s is not None and was is None:
            machine.ready_s = now_s + machine.startup_s
            machine.is_off = machine.ready_s > now_s
        elif was is None and machine.up:
            take_back_all(self.sim, machine, now_s)
        self.changed(engine)

    def ready(self, now_s: float) -> None:
        """Open engines that have finished loading."""
        for machine in self.sim.engines:
            if machine.is_off and machine.ready_s <= now_s:
                machine.is_off = False
                self.sim.moves.append(Move("started", now_s, -1, machine.index))
                self.changed(machine.index)
            if machine.role_ready_s is not None and machine.role_ready_s <= now_s:
                machine.role_ready_s = None
                self.changed(machine.index)

    def close(self, engine: int, closed: bool) -> None:
        machine = self.sim.engines[engine]
        if closed != machine.closed:
            machine.closed = closed
            self.changed(engine)

    def changed(self, engine: int) -> None:
        """Note a change of which the router knows at once."""
        machine, snapshot = self.sim.engines[engine], self.sim.router_state.snapshots[engine]
        snapshot.up, snapshot.tier = machine.up, machine.tier
        snapshot.role, snapshot.changing = machine.role, machine.changes_role
        otherwise_open = not machine.drained and not machine.is_off and not snapshot.changing
        snapshot.closed = machine.closed or not otherwise_open
        snapshot.pending = machine.up and machine.closed and otherwise_open
        snapshot.off = machine.is_off
        self.held_dirty = True

    def scale(self, now_s: float) -> None:
        """Ask the scaler."""
        self.sim.router_state.apply_signals(now_s)
        assert self.sim.scaler is not None
        changes = self.sim.scaler.decide(now_s, [(engine.tier, engine.closed) for engine in self.sim.engines])
        self.starts += sum(engine.tier is None and changes[engine.index][0] is not None for engine in self.sim.engines)
        roles = self.sim.scaler.decide_roles(now_s, [engine.next_role or engine.role for engine in self.sim.engines])
        for engine, (tier, closed) in enumerate(changes):
            self.move(engine, tier, now_s)
            self.close(engine, closed)
            give_role(self.sim, self.sim.engines[engine], roles[engine])
        self.held_dirty = True
        if self.starts > MOST_STARTS:
            raise StuckError(f"engines are started in vain until {now_s}")

    def somebody_could_take_a_first(self) -> bool:
        """Return whether an engine could take a prefill: now, or if the scaler opened, started or turned it."""
        return any(line and (self.sim.router_state.taking(line[0]) or self.could_open(line[0])) for line in self.lines)

    def could_open(self, r: Request) -> bool:
        return self.sim.scaler is not None and len(self.sim.engines) > 1 and any(
            engine.up
            and not engine.drained
            and (engine.role_change_s is not None or (engine.role == "decode") == (r.kv_at is not None))
            for engine in self.sim.engines
        )  # fmt: skip

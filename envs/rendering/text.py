"""A simulation as plain text, at most WIDTH columns wide, with colours if asked for."""

from __future__ import annotations

import math

from servegym.envs.rendering.cluster import NOT_ROUTED, ClusterScene, Engines
from servegym.envs.rendering.engine import Batch, EngineScene
from servegym.envs.rendering.head import Head
from servegym.envs.rendering.rows import IN_BATCH, SUSPENDED, Requests
from servegym.envs.rendering.wording import deadline_place, duration, progress, ratio, remaining, share, tier_names
from servegym.simulator.records.types import POOL

WIDTH = 100
MOST_RUNNING, MOST_WAITING, MOST_ENGINES = 16, 12, 32
RED, BLUE, BOLD, DIM, PLAIN = "\033[31m", "\033[34m", "\033[1m", "\033[2m", "\033[0m"
SIDE = 10  # columns of the scale of deadlines on each side


class Ink:
    """Colours, or none."""

    def __init__(self, colour: bool):
        self.colour = colour

    def __call__(self, code: str, text: str) -> str:
        return f"{code}{text}{PLAIN}" if self.colour else text


def engine_text(scene: EngineScene, colour: bool = False) -> str:
    """One engine: its KV memory, its batch, and a line a request."""
    ink, requests, memory = Ink(colour), scene.requests, scene.memory
    running, waiting = requests.waiting(False), requests.waiting(True)
    lines = head_lines(scene.head, scene.name, ink)
    bar = kv_bar(memory.decodes / memory.total, memory.prefills / memory.total, memory.moving / memory.total, 50)
    lines.append(f"KV memory {bar} {share(memory.used / memory.total)} of {memory.total:,} blocks")
    lines.append(f"Batch     {batch_words(scene.batch)}")
    late = int(requests.late.sum())
    lines.append(
        f"Queue     {len(requests):,}: {len(running):,} in memory, {len(waiting):,} waiting; "
        + ink(RED if late else PLAIN, f"{late:,} late")
    )
    lines += [
        "",
        f"{'request':>9} pri  {'context computed':<29} {'out':>6} {'batch':>6}  {'next deadline':>13}  "
        "late <- | -> in time",
    ]
    lines += request_lines("in memory", running, MOST_RUNNING, scene.longest_prompt, ink)
    lines += request_lines("waiting", waiting, MOST_WAITING, scene.longest_prompt, ink)
    lines += ["", "KV: D decodes, P prefills, > on its way, . free. Context: # computed, h in host memory, . left."]
    lines.append("Batch: tokens in the running or last one, * if it runs. Deadlines: log scale, each side 10 s.")
    if (requests.slot >= 0).any():
        lines.append("[k]: the request in slot k of the action.")
    return "\n".join(lines)


def cluster_text(scene: ClusterScene, colour: bool = False) -> str:
    """A line an engine, the request that is to be routed, and the lines at the router."""
    ink, engines = Ink(colour), scene.engines
    lines = [*head_lines(scene.head, scene.name, ink), ""]
    lines.append(
        f"{'engine':>6} {'role':<7} {'status':<8} {'tier':<6} {'KV memory':<20} {'pre':>4} {'dec':>4} {'late':>4} "
        f"{'next':>7}  {'batch':<13} {'knows':>7}"
    )
    shown = engines.shown(MOST_ENGINES)
    lines += [engine_line(engines, e, ink) for e in shown]
    if len(shown) < len(engines):
        lines.append(f"   + {len(engines) - len(shown):,} more engines")
    lines.append("")
    if len(scene.deciding):
        request = scene.deciding
        lines.append(
            ink(BOLD, f"Request {request.index[0]}")
            + f": {request.context_tokens[0]:,} tokens, priority {request.priority[0]}, next deadline "
            + f"{remaining(float(request.remain_s[0]))}; the router says: {scene.base_route}"
        )
    held = [
        f"{line.name} {line.waiting:,} (first: {remaining(line.first_remain_s)})"
        for line in scene.lines
        if line.waiting
    ]
    lines += wrapped("Held at the router: " + ("; ".join(held) if held else "none"))
    if len(scene.tiers_s) > 1:
        tiers = ", ".join(f"{i} {duration(tier_s)}" for i, tier_s in enumerate(scene.tiers_s))
        lines += wrapped(f"Tiers, by TPOT SLO: {tiers}")
    lines.append("> named by the router, * to decide. KV: D used, > on its way, . free. pre, dec: prefills and decodes")
    lines.append("in time, next: to their next deadline. knows: prefills/decodes in the router's book.")
    return "\n".join(lines)


def head_lines(head: Head, name: str, ink: Ink) -> list[str]:
    when = f"t = {head.now_s:.3f} s"
    return [
        ink(BOLD, fitted(name, WIDTH - len(when) - 1)) + " " + when,
        f"TDG ratio {ratio(head.tdg_ratio)} of the episode so far (gain {head.gain:,.0f}); "
        f"{share(head.on_time)} of the tokens out were in time",
        fitted(f"{progress(head)}; {head.decision}", WIDTH).rstrip(),
        *([fitted(f"Last action: {head.action}", WIDTH).rstrip()] if head.action else []),
    ]


def fitted(text: str, width: int) -> str:
    """The text in so many columns."""
    return text[: width - 1] + "~" if len(text) > width else text.ljust(width)


def wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def kv_bar(decodes: float, prefills: float, moving: float, width: int) -> str:
    """[DDDPP>...], by the shares of the memory."""
    # Whatever is not nothing is seen.
    d, p, m = (
        math.ceil(min(1.0, s) * width - 1e-9) for s in (decodes, decodes + prefills, decodes + prefills + moving)
    )
    return f"[{'D' * d}{'P' * (p - d)}{'>' * (m - p)}{'.' * (width - m)}]"


def batch_words(batch: Batch) -> str:
    """What the batch is and takes."""
    if batch.requests == 0:
        return "none"
    what = f"{batch.requests:,} requests, {batch.tokens:,} tokens, estimated {duration(batch.estimate_s)}"
    return f"runs: {what}, for {duration(batch.ran_s)} so far" if batch.runs else f"ended: {what}"


def request_lines(title: str, requests: Requests, most: int, longest: int, ink: Ink) -> list[str]:
    """A line a request, at most so many, and how many more there are."""
    lines = [ink(DIM, f"{title} ({len(requests):,})")]
    shown = requests.at(slice(0, most))
    for k in range(len(shown)):
        late = bool(shown.late[k])
        line = request_line(shown, k, longest)
        lines.append(ink(RED, line) if late else line)
    if len(requests) > most:
        rest = requests.at(slice(most, None))
        lines.append(f"{'':>9} + {len(rest):,} more, {int(rest.late.sum()):,} late")
    return lines


def request_line(requests: Requests, k: int, longest: int) -> str:
    context, computed, kept = (
        int(one[k]) for one in (requests.context_tokens, requests.computed_tokens, requests.offloaded_tokens)
    )
    width = 14
    scale = width / max(longest, 1)
    length = max(1, min(width, round(context * scale)))
    done = length if requests.decoding[k] else length * computed // context
    host = length * (computed + kept) // context - done if kept else 0
    bar = f"{'#' * done}{'h' * host}{'.' * (length - done - host)}"
    batch = f"+{requests.batch_tokens[k]}" if requests.batch_tokens[k] else ""
    batch += "*" if requests.state[k] == IN_BATCH else ""
    if requests.state[k] == SUSPENDED:
        batch = "susp."
    remain_s = float(requests.remain_s[k])
    label = f"[{requests.slot[k]}] {requests.index[k]}" if requests.slot[k] >= 0 else str(requests.index[k])
    return (
        f"{label:>9} {requests.priority[k]:>3}  {bar:<{width}} {f'{computed:,}/{context:,}':>14} "
        f"{requests.num_output_tokens[k]:>6} {batch:>6}  {remaining(remain_s):>13}  {deadline_bar(remain_s)}"
    )


def deadline_bar(remain_s: float) -> str:
    """<<<<|     or      |===: how late the next token is, or how much time it has."""
    place = deadline_place(remain_s)
    length = max(1, math.ceil(abs(place) * SIDE))
    left, right = ("<" * length, "") if remain_s <= 0 else ("", "=" * length)
    return f"{left:>{SIDE}}|{right:<{SIDE}}".rstrip()


def engine_line(engines: Engines, e: int, ink: Ink) -> str:
    mark = ">" if engines.chosen[e] != NOT_ROUTED else "*" if engines.decides[e] else " "
    width = 10
    used, moving = engines.kv_used[e], engines.kv_moving[e]
    bar = kv_bar(used - moving, 0.0, moving, width)
    tier = "-" if engines.tier[e] == engines.new_tier[e] == POOL else tier_names(engines.tier[e])
    if engines.new_tier[e] != engines.tier[e]:
        tier += f">{tier_names(engines.new_tier[e])}"
    batch = "idle" if engines.status[e] != "failed" else ""
    if not math.isnan(engines.ran[e]):
        batch = f"{engines.batch_requests[e]}: {duration(engines.batch_estimate_s[e])}"
    line = (
        f"{mark} {e:>4} {engines.role[e]:<7} {engines.status[e]:<8} {tier:<6} {bar} {100 * used:>5.1f} % "
        f"{engines.prefills[e]:>4} {engines.decodes[e]:>4} {engines.late[e]:>4} {duration(engines.next_s[e]):>7}  "
        f"{batch:<13} {f'{engines.known_prefills[e]}/{engines.known_decodes[e]}':>7}"
    )
    if engines.status[e] != "up":
        return ink(DIM, line)
    return ink(BLUE, line) if mark != " " else line

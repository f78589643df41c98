"""A picture of a cluster: figures, engines one a row (or, if many, one a tile), and what the router is to decide."""

from __future__ import annotations

import math

import numpy as np

from servegym.envs.rendering.canvas import (
    CHOSEN,
    DARK,
    FAINT,
    INK,
    LATE,
    LIGHT,
    LINE,
    MOVING,
    PAPER,
    TILE,
    WIDTH,
    Canvas,
)
from servegym.envs.rendering.cluster import ClusterScene, Engines
from servegym.envs.rendering.parts import (
    LEFT,
    draw_context,
    draw_deadline,
    draw_deadlines,
    draw_head,
    draw_scale,
    draw_tiles,
    remaining_text,
)
from servegym.envs.rendering.wording import duration, tier_name, tier_names

TOP, BOTTOM = 206, 600  # of the engines; the router is below
ROWS, TALLEST = 14, 36  # engines, one a row
GRIDS = (8, 5), (12, 8), (16, 12)  # of tiles, of many engines


def draw_cluster(scene: ClusterScene) -> np.ndarray:
    """uint8[HEIGHT, WIDTH, 3]"""
    canvas, engines = Canvas(), scene.engines
    draw_head(canvas, scene.head, scene.name)
    late, held = sum(engines.late), sum(line.waiting for line in scene.lines)
    present = sum(engines.prefills) + sum(engines.decodes) + late
    down = sum(status == "failed" for status in engines.status)
    draw_tiles(
        canvas,
        64,
        scene.head,
        [
            ("next token late, at engines", f"{late:,} of {present:,}", late > 0),
            ("held at the router", f"{held:,}", held > 0),
            ("engines failed", f"{down:,} of {len(engines):,}", down > 0),
        ],
    )
    draw_deadlines(canvas, 124, "Time to the next deadline, all requests at engines", scene.remain_s)
    if len(engines) <= ROWS:
        draw_rows(canvas, engines, scene.tiers_s)
    else:
        draw_engine_tiles(canvas, engines)
    draw_router(canvas, scene)
    canvas.legend(
        707,
        [
            ("decodes, KV in use", DARK, False),
            ("prefills", LIGHT, False),
            ("KV on its way", MOVING, True),
            ("next token late", LATE, True),
            ("named by the router", CHOSEN, False),
        ],
        "Batch: requests, estimated time (bar: gone by). Router knows: prefills / decodes."
        if len(engines) <= ROWS
        else "",
    )
    return canvas.array()


def draw_rows(canvas: Canvas, engines: Engines, tiers_s: list[float]) -> None:
    canvas.box(LEFT, TOP, WIDTH - 2 * LEFT, 22, TILE)
    for x, anchor, word in (
        (60, "rm", "engine"), (74, "lm", "role"), (132, "lm", "status"), (206, "lm", "tier"), (290, "lm", "KV memory"),
        (530, "lm", f"requests (whole bar: {engines.scale})"), (812, "rm", "prefill"), (866, "rm", "decode"),
        (906, "rm", "late"), (986, "rm", "next due"), (1004, "lm", "batch"), (1252, "rm", "router knows"),
    ):  # fmt: skip
        canvas.text(x, TOP + 11, word, 11, FAINT, anchor=anchor)
    height = min(TALLEST, (BOTTOM - TOP - 24) // len(engines))
    for e in range(len(engines)):
        draw_row(canvas, TOP + 24 + e * height, height, engines, e, tiers_s)


def draw_row(canvas: Canvas, y: float, height: float, engines: Engines, e: int, tiers_s: list[float]) -> None:
    middle, up = y + height / 2, engines.status[e] == "up"
    bar, tall = y + height * 0.22, height * 0.54
    if engines.chosen[e] or engines.decides[e]:
        canvas.box(LEFT, y, WIDTH - 2 * LEFT, height - 1, CHOSEN)
        canvas.polygon([(24, middle - 6), (24, middle + 6), (32, middle)], INK)
    ink = INK if up else FAINT
    canvas.text(60, middle, str(e), 12, ink, anchor="rm", bold=True)
    canvas.text(74, middle, engines.role[e], 12, ink)
    failed = engines.status[e] == "failed"
    canvas.text(132, middle, engines.status[e], 12, LATE if failed else ink, bold=not up)
    tier, bold = tier_name(engines.tier[e], tiers_s), engines.new_tier[e] != engines.tier[e]
    if bold:
        tier = f"{tier_names(engines.tier[e])} → {tier_names(engines.new_tier[e])}"
    canvas.text(206, middle, tier, 12, ink, bold=bold)
    if failed:
        canvas.box(290, bar, 170, tall, LINE)
        canvas.stripes(290, bar, 170, tall, PAPER, 6)
    else:
        draw_kv(canvas, 290, bar, 170, tall, engines, e)
        canvas.text(518, middle, f"{100 * engines.kv_used[e]:.1f} %", 12, ink, anchor="rm")
        draw_counts(canvas, 530, bar, 220, tall, engines, e)
    for x, number in ((812, engines.prefills[e]), (866, engines.decodes[e])):
        canvas.text(x, middle, str(number), 12, ink if number else FAINT, anchor="rm")
    late = engines.late[e]
    canvas.text(906, middle, str(late), 12, LATE if late else FAINT, anchor="rm", bold=late > 0)
    canvas.text(986, middle, duration(engines.next_s[e]), 12, ink, anchor="rm")
    draw_batch(canvas, 1004, y, height, engines, e)
    canvas.text(1252, middle, f"{engines.known_prefills[e]} / {engines.known_decodes[e]}", 12, ink, anchor="rm")
    canvas.rule(LEFT, y + height - 1, WIDTH - LEFT - 1, y + height - 1)


def draw_kv(canvas: Canvas, x: float, y: float, width: float, height: float, engines: Engines, e: int) -> None:
    moving = engines.kv_moving[e]
    canvas.stacked(x, y, width, height, [(engines.kv_used[e] - moving, DARK, False), (moving, MOVING, True)])


def draw_counts(canvas: Canvas, x: float, y: float, width: float, height: float, engines: Engines, e: int) -> None:
    whole = engines.scale
    parts = [(engines.decodes[e], DARK, False), (engines.prefills[e], LIGHT, False), (engines.late[e], LATE, True)]
    canvas.stacked(x, y, width, height, [(count / whole, colour, striped) for count, colour, striped in parts])


def draw_batch(canvas: Canvas, x: float, y: float, height: float, engines: Engines, e: int) -> None:
    """The running batch: how many, how long, and how much of that has gone by; nothing of an engine that is idle."""
    ran = engines.ran[e]
    if math.isnan(ran):
        canvas.text(x, y + height / 2, "idle" if engines.status[e] != "failed" else "", 12, FAINT)
        return
    canvas.stacked(x, y + height * 0.22, 60, height * 0.54, [(ran, DARK, False)])
    words = f"{engines.batch_requests[e]}: {duration(engines.batch_estimate_s[e])}"
    canvas.text(x + 68, y + height / 2, words, 12)


def draw_engine_tiles(canvas: Canvas, engines: Engines) -> None:
    """Engines as tiles: number, what is wrong or of which tier it is, KV memory above, requests below."""
    across, down = next((grid for grid in GRIDS if grid[0] * grid[1] >= len(engines)), GRIDS[-1])
    width, height = (WIDTH - 2 * LEFT) / across, (BOTTOM - TOP - 24) / down
    words = f"A tile an engine: KV memory in use above, requests below (whole bar: {engines.scale})"
    canvas.text(LEFT, TOP + 10, words, 12, FAINT)
    room = across * down
    shown = engines.shown(room if len(engines) <= room else room - 1)
    for place, e in enumerate(shown):
        draw_tile(
            canvas, LEFT + width * (place % across), TOP + 24 + height * (place // across), width, height, engines, e
        )
    if len(shown) < len(engines):
        place = room - 1
        x, y = LEFT + width * (place % across), TOP + 24 + height * (place // across)
        canvas.text(x + width / 2, y + height / 2, f"+ {len(engines) - len(shown):,} more", 11, anchor="mm")


def draw_tile(canvas: Canvas, x: float, y: float, width: float, height: float, engines: Engines, e: int) -> None:
    named, failed = bool(engines.chosen[e] or engines.decides[e]), engines.status[e] == "failed"
    canvas.box(x + 1, y + 1, width - 2, height - 2, CHOSEN if named else TILE, INK if named else None)
    canvas.text(x + 6, y + height * 0.24, str(e), 11, INK, bold=True)
    note, colour = engines.status[e], LATE
    if note == "up":
        note, colour = tier_names(engines.tier[e]) if engines.tier[e] >= 0 else engines.role[e], FAINT
        note = "" if note == "both" else note
    canvas.text(x + width - 6, y + height * 0.24, note, 10, colour, anchor="rm")
    bar = height * 0.2
    if failed:
        canvas.stripes(x + 6, y + height * 0.46, width - 12, 2 * bar, FAINT, 6)
        return
    draw_kv(canvas, x + 6, y + height * 0.43, width - 12, bar, engines, e)
    draw_counts(canvas, x + 6, y + height * 0.69, width - 12, bar, engines, e)


def draw_router(canvas: Canvas, scene: ClusterScene) -> None:
    """The request to be routed, and the lines in which others are held."""
    y, deciding = BOTTOM + 8, scene.deciding
    canvas.box(LEFT, y, 600, 84, TILE)
    if len(deciding):
        words = f"Request {deciding.index[0]} is to be routed; the router says: {scene.base_route}"
        canvas.fitted(LEFT + 10, y + 15, words, 580, size=13, bold=True)
        tokens, priority = int(deciding.context_tokens[0]), int(deciding.priority[0])
        canvas.text(LEFT + 10, y + 40, f"{tokens:,} tokens, priority {priority}", 12)
        draw_context(canvas, LEFT + 10, y + 54, 200, 14, scene.longest_prompt, deciding, 0)
        remain_s = float(deciding.remain_s[0])
        canvas.text(LEFT + 270, y + 40, "next deadline", 12, FAINT)
        remaining_text(canvas, LEFT + 590, y + 40, remain_s)
        draw_scale(canvas, LEFT + 420, y + 50, 150, 18, 9)
        draw_deadline(canvas, LEFT + 420, y + 54, 150, 11, remain_s)
    else:
        canvas.text(LEFT + 10, y + 15, "No request is to be routed now", 13, FAINT)
    x, width = LEFT + 620, WIDTH - 2 * LEFT - 620
    canvas.box(x, y, width, 84, TILE)
    lines = [line for line in scene.lines if line.waiting]
    held = sum(line.waiting for line in lines)
    canvas.text(x + 10, y + 15, f"Held at the router: {held:,}", 13, INK if held else FAINT, bold=held > 0)
    for k, line in enumerate(lines[:8]):
        left, low = x + 10 + 310 * (k % 2), y + 32 + 14 * (k // 2)
        canvas.text(left, low + 3, f"{line.name}: {line.waiting:,}; the first is due in", 11)
        remaining_text(canvas, left + 280, low + 3, line.first_remain_s, 11)

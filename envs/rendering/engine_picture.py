"""A picture of one engine: figures, KV memory, batch, deadlines of all requests, and the requests one by one."""

from __future__ import annotations

import numpy as np

from servegym.envs.rendering.canvas import DARK, FAINT, LATE, LIGHT, LINE, MOVING, PAPER, TILE, WIDTH, Canvas
from servegym.envs.rendering.engine import Batch, EngineScene, Memory
from servegym.envs.rendering.parts import (
    GAP,
    LEFT,
    draw_context,
    draw_deadline,
    draw_deadlines,
    draw_head,
    draw_tiles,
    remaining_text,
)
from servegym.envs.rendering.rows import IN_BATCH, SUSPENDED, Requests
from servegym.envs.rendering.wording import duration, share

ROWS, ROW = 22, 17  # of a panel, and the height of one
PANEL = (WIDTH - 2 * LEFT - 2 * GAP) / 2


def draw_engine(scene: EngineScene) -> np.ndarray:
    """uint8[HEIGHT, WIDTH, 3]"""
    canvas, requests = Canvas(), scene.requests
    draw_head(canvas, scene.head, scene.name)
    running, waiting = requests.waiting(False), requests.waiting(True)
    late = int(requests.late.sum())
    draw_tiles(
        canvas,
        64,
        scene.head,
        [
            ("requests in memory", f"{len(running):,}", False),
            ("requests waiting", f"{len(waiting):,}", False),
            ("next token late", f"{late:,} of {len(requests):,}", late > 0),
        ],
    )
    draw_memory(canvas, LEFT, 138, 760, scene.memory)
    draw_batch(canvas, 810, 138, WIDTH - LEFT - 810, scene.batch)
    draw_deadlines(canvas, 194, "Time to the next deadline, all requests", requests.remain_s)
    draw_panel(canvas, LEFT, 282, "In memory", running, scene.longest_prompt)
    draw_panel(canvas, LEFT + PANEL + 2 * GAP, 282, "Waiting", waiting, scene.longest_prompt)
    canvas.legend(
        707,
        [
            ("of decodes; in time", DARK, False),
            ("of prefills", LIGHT, False),
            ("on its way, or in host memory", MOVING, True),
            ("late", LATE, True),
            ("free; left to compute", PAPER, False),
        ],
        "▶ in the running batch. [k] slot of the action. Deadline: of the next token, log scale. Priority: 0 highest.",
    )
    return canvas.array()


def draw_memory(canvas: Canvas, x: float, y: float, width: float, memory: Memory) -> None:
    canvas.text(x, y + 6, f"KV memory: {share(memory.used / memory.total)} of {memory.total:,} blocks in use", 12)
    canvas.text(
        x + width, y + 6, f"of {memory.block_tokens} tokens each; tick: kept free of newcomers", 11, FAINT, anchor="rm"
    )
    parts = [(memory.decodes, DARK, False), (memory.prefills, LIGHT, False), (memory.moving, MOVING, True)]
    shares = [(blocks / memory.total, colour, striped) for blocks, colour, striped in parts]
    canvas.stacked(x, y + 18, width, 24, shares)
    mark = x + width * (1 - memory.watermark / memory.total)
    canvas.rule(mark, y + 15, mark, y + 44, FAINT)


def draw_batch(canvas: Canvas, x: float, y: float, width: float, batch: Batch) -> None:
    """What runs (or ran last) and how much of the estimated time has gone by."""
    words = "Running batch" if batch.runs else "Last batch"
    words += f": {batch.requests:,} requests, {batch.tokens:,} tokens" if batch.requests else ": none"
    canvas.text(x, y + 6, words, 12)
    if batch.requests:
        canvas.text(x + width, y + 6, f"estimated {duration(batch.estimate_s)}", 12, anchor="rm")
    done = min(1.0, batch.ran_s / batch.estimate_s) if batch.runs and batch.estimate_s > 0 else 0.0
    canvas.stacked(x, y + 18, width, 24, [(done, DARK, False)])
    if batch.runs:
        canvas.text(x + width - 6, y + 30, f"{duration(batch.ran_s)} so far", 11, anchor="rm")
    elif batch.requests:
        canvas.text(x + width / 2, y + 30, "ended", 11, FAINT, anchor="mm")


def draw_panel(canvas: Canvas, x: float, y: float, title: str, requests: Requests, longest: int) -> None:
    """Requests one by one; of a long list the first, and how many more there are."""
    canvas.box(x, y, PANEL, 20, TILE)
    canvas.text(x + 6, y + 10, f"{title} ({len(requests):,})", 12, bold=True)
    for place, anchor, word in (
        (158, "mm", "priority"), (190, "lm", "context"), (350, "rm", "tokens"), (384, "rm", "out"),
        (430, "rm", "batch"), (PANEL - 6, "rm", "next deadline"),
    ):  # fmt: skip
        canvas.text(x + place, y + 10, word, 11, FAINT, anchor=anchor)
    fits = len(requests) <= ROWS
    shown = requests.at(slice(0, ROWS if fits else ROWS - 1))
    for k in range(len(shown)):
        draw_request(canvas, x, y + 22 + k * ROW, shown, k, longest)
    if not fits:
        rest = requests.at(slice(ROWS - 1, None))
        words = f"+ {len(rest):,} more, {int(rest.late.sum()):,} of them late"
        canvas.text(x + 64, y + 22 + (ROWS - 0.5) * ROW, words, 12)
    elif len(requests) == 0:
        canvas.text(x + 64, y + 22 + ROW / 2, "none", 12, FAINT)


def draw_request(canvas: Canvas, x: float, y: float, requests: Requests, k: int, longest: int) -> None:
    middle, remain_s = y + ROW / 2, float(requests.remain_s[k])
    context, computed = int(requests.context_tokens[k]), int(requests.computed_tokens[k])
    if requests.state[k] == IN_BATCH:
        canvas.polygon([(x + 4, y + 4), (x + 4, y + ROW - 4), (x + 12, middle)], DARK)
    if requests.slot[k] >= 0:
        canvas.text(x + 18, middle, f"[{requests.slot[k]}]", 11, DARK, anchor="lm")
    canvas.text(x + 92, middle, str(requests.index[k]), 12, anchor="rm")
    canvas.text(x + 158, middle, str(requests.priority[k]), 12, anchor="mm")
    draw_context(canvas, x + 190, y + 3, 80, ROW - 6, longest, requests, k)
    tokens = f"{context:,}" if requests.decoding[k] else f"{computed:,} of {context:,}"
    canvas.text(x + 350, middle, tokens, 12, anchor="rm")
    canvas.text(x + 384, middle, str(requests.num_output_tokens[k]), 12, anchor="rm")
    if requests.state[k] == SUSPENDED:
        canvas.text(x + 430, middle, "susp.", 11, FAINT, anchor="rm")
    elif requests.batch_tokens[k]:
        canvas.text(x + 430, middle, f"+{requests.batch_tokens[k]}", 12, anchor="rm")
    draw_deadline(canvas, x + 484, y + 3, 44, ROW - 6, remain_s)
    remaining_text(canvas, x + PANEL - 6, middle, remain_s, 12)
    canvas.rule(x, y + ROW - 1, x + PANEL, y + ROW - 1, LINE)

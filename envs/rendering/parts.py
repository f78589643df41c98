"""Parts that pictures of one engine and of clusters share."""

from __future__ import annotations

import math

import numpy as np

from servegym.envs.rendering.canvas import DARK, FAINT, INK, LATE, LIGHT, LINE, MOVING, PAPER, WIDTH, Canvas, font
from servegym.envs.rendering.head import Head
from servegym.envs.rendering.rows import Requests
from servegym.envs.rendering.wording import deadline_place, progress, ratio, remaining, share

LEFT, GAP = 20, 10
BINS = 81  # of deadlines; the middle one stays empty, so that every bar is on one side


def draw_head(canvas: Canvas, head: Head, name: str) -> None:
    """Two lines at the top: what it is, when it is, what has come and what is to be decided."""
    clock = f"t = {head.now_s:.3f} s"
    canvas.fitted(LEFT, 22, name, WIDTH - 3 * LEFT - font(20, True).getlength(clock), size=18, bold=True)
    canvas.text(WIDTH - LEFT, 22, clock, 20, anchor="rm", bold=True)
    canvas.text(LEFT, 48, progress(head), 12, FAINT)
    canvas.fitted(WIDTH - LEFT, 48, head.decisions, 2 * WIDTH / 3 - 2 * LEFT, size=13, anchor="rm")


def draw_tiles(canvas: Canvas, y: float, head: Head, others: list[tuple[str, str, bool]]) -> None:
    """The gain so far, and others: (title, figure, whether it is bad news)."""
    tiles = [
        ("TDG ratio of the episode so far", ratio(head.tdg_ratio), False),
        ("gain so far", f"{head.gain:,.0f}", False),
        ("tokens out that were in time", share(head.on_time), False),
        *others,
    ]
    width = (WIDTH - 2 * LEFT - (len(tiles) - 1) * GAP) / len(tiles)
    for i, (title, figure, bad) in enumerate(tiles):
        canvas.tile(LEFT + i * (width + GAP), y, width, title, figure, LATE if bad else INK)


def draw_deadline(canvas: Canvas, middle: float, y: float, half: float, height: float, remain_s: float) -> None:
    """A bar from 0 to the right for time left, to the left for a deadline missed."""
    length = max(2.0, abs(deadline_place(remain_s)) * half)
    if remain_s > 0:
        canvas.box(middle + 1, y, length, height, DARK)
    else:
        canvas.box(middle - length, y, length, height, LATE)
        canvas.stripes(middle - length, y, length, height)
    canvas.rule(middle, y - 2, middle, y + height + 1, FAINT)


def draw_context(
    canvas: Canvas, x: float, y: float, width: float, height: float, longest: int, requests: Requests, k: int
) -> None:
    """A bar as long as the context is beside the longest prompt: computed, kept in host memory, left."""
    context, computed, kept = requests.context_tokens[k], requests.computed_tokens[k], requests.offloaded_tokens[k]
    length = min(width, max(4.0, width * context / max(longest, 1)))
    canvas.box(x, y, length, height, PAPER, FAINT)
    if requests.decoding[k]:
        canvas.box(x, y, length, height, DARK)
        return
    done, host = length * computed / context, length * kept / context
    canvas.box(x, y, done, height, LIGHT, FAINT)
    canvas.box(x + done, y, host, height, MOVING, FAINT)
    canvas.stripes(x + done, y + 1, host, height - 2)


def draw_scale(canvas: Canvas, middle: float, y: float, half: float, height: float, size: int = 10) -> None:
    """Ticks of the scale of deadlines, and what they stand for."""
    for remain_s, word in (
        (-10.0, "-10 s"),
        (-1.0, "-1"),
        (-0.1, "-0.1"),
        (0.0, "0"),
        (0.1, "0.1"),
        (1.0, "1"),
        (10.0, "10 s"),
    ):
        x = middle + half * (deadline_place(remain_s) if remain_s else 0.0)
        canvas.rule(x, y, x, y + height, FAINT if remain_s == 0 else LINE)
        canvas.text(x, y + height + 8, word, size, FAINT, anchor="mm")


def remaining_text(canvas: Canvas, x: float, y: float, remain_s: float, size: int = 12) -> None:
    """Time left, or "late ..." in the colour of what is late."""
    bad = not math.isnan(remain_s) and remain_s <= 0
    canvas.text(x, y, remaining(remain_s), size, LATE if bad else INK, anchor="rm", bold=bad)


def draw_deadlines(canvas: Canvas, y: float, title: str, remain_s: np.ndarray) -> None:
    """How many requests have how much time to the deadline of their next token, float64[requests]."""
    canvas.text(LEFT, y + 6, title, 12)
    x, width, height = LEFT, WIDTH - 2 * LEFT, 42
    middle, half = x + width / 2, width / 2
    places = np.array([deadline_place(one_s) for one_s in remain_s.tolist()])
    bins = np.round(places * (BINS // 2)).astype("i8")
    bins = np.where(bins == 0, np.where(remain_s > 0, 1, -1), bins)
    counts = np.bincount(bins + BINS // 2, minlength=BINS)
    most, bar = max(int(counts.max()), 4), width / BINS
    draw_scale(canvas, middle, y + 16, half - bar / 2, height)
    for k in np.flatnonzero(counts):
        tall = max(2.0, (height - 2) * counts[k] / most)
        left = x + k * bar + 1
        canvas.box(left, y + 16 + height - tall, bar - 2, tall, LATE if k < BINS // 2 else DARK)
        if k < BINS // 2:
            canvas.stripes(left, y + 16 + height - tall, bar - 2, tall)
    canvas.rule(x, y + 16 + height, x + width, y + 16 + height, FAINT)
    canvas.text(middle - 14, y + 6, "late", 12, LATE, anchor="rm", bold=True)
    canvas.text(middle + 14, y + 6, "in time", 12, DARK)
    words = f"{len(remain_s):,} requests; highest bar: {int(counts.max()):,}"
    canvas.text(x + width, y + 6, words, 11, FAINT, anchor="rm")

"""Draws a scene as a picture with Pillow: rectangles, bars and short texts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servegym.envs.rendering import scene as kinds
from servegym.envs.rendering.scene import Bar, Row, Scene, Table, Words
from servegym.envs.rendering.words import deadline_place

WIDTH, HEIGHT, LEFT, GAP = 1280, 720, 20, 10
# The colours of the HTML reports. Neighbouring parts of a bar differ in lightness, so a picture is legible in grey.
INK, FAINT, LINE, TILE, PAPER = "#1b1b1b", "#5c5c5c", "#d5d5d5", "#f4f4f2", "#ffffff"
DARK, LIGHT, MOVING, LATE, CHOSEN = "#2c5f8a", "#9cc7e6", "#e3b23c", "#b02a1e", "#ffe9a8"
PARTS = {  # (colour, striped)
    kinds.DECODES: (DARK, False), kinds.PREFILLS: (LIGHT, False), kinds.MOVING: (MOVING, True),
    kinds.LATE: (LATE, True), kinds.FREE: (PAPER, False), kinds.FAILED: (LINE, True),
}  # fmt: skip
TONES = {  # (colour, bold)
    kinds.PLAIN: (INK, False), kinds.STRONG: (INK, True), kinds.FAINT: (FAINT, False), kinds.BAD: (LATE, True),
}  # fmt: skip
TICKS = (-10.0, "-10 s"), (-1.0, "-1"), (-0.1, "-0.1"), (0.0, "0"), (0.1, "0.1"), (1.0, "1"), (10.0, "10 s")
BINS = 81  # of deadlines; the middle one stays empty, so that every bar is either late or in time
GRIDS = (8, 5), (12, 8), (16, 12)  # (columns, rows) of tiles
BAND = 84  # height of the last of several bands of tables


@functools.cache
def font(size: int, bold: bool = False) -> Any:
    """DejaVu Sans, which comes with matplotlib and has digits of equal width."""
    import matplotlib
    from PIL import ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / f"DejaVuSans{'-Bold' if bold else ''}.ttf"), size)


@functools.lru_cache(maxsize=4096)
def stamp(text: str, size: int, bold: bool, anchor: str) -> tuple[Any, int, int]:
    """Draw a text as a mask. Returns it with the offset of its upper left corner from the anchor, in pixels.

    Cached, as most texts stay the same from frame to frame and drawing them takes most of a picture's time.
    """
    from PIL import Image, ImageDraw

    face = font(size, bold)
    left, top, right, bottom = (round(side) for side in face.getbbox(text, anchor=anchor))
    mask = Image.new("L", (max(1, right - left + 1), max(1, bottom - top + 1)))
    ImageDraw.Draw(mask).text((-left, -top), text, 255, face, anchor)
    return mask, left, top


class Canvas:
    """A white picture of WIDTH x HEIGHT pixels. x and y are in pixels from the upper left corner."""

    def __init__(self) -> None:
        from PIL import Image, ImageDraw

        self.image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
        self._draw = ImageDraw.Draw(self.image)

    def box(self, x: float, y: float, width: float, height: float, fill: str | None, line: str | None = None) -> None:
        if width >= 0.5 and height >= 0.5:
            right, bottom = max(x, x + width - 1), max(y, y + height - 1)
            self._draw.rectangle((round(x), round(y), round(right), round(bottom)), fill, line)

    def rule(self, x0: float, y0: float, x1: float, y1: float, colour: str = LINE) -> None:
        self._draw.line((round(x0), round(y0), round(x1), round(y1)), colour)

    def arrow(self, x: float, middle: float) -> None:
        self._draw.polygon([(round(x), round(middle) - 5), (round(x), round(middle) + 5), (round(x) + 8, middle)], INK)

    def text(
        self, x: float, y: float, text: str, size: int = 12, colour: str = INK, anchor: str = "lm", bold: bool = False,
        width: float = WIDTH,
    ) -> None:  # fmt: skip
        """Draw text with its anchor (one of Pillow's: "lm", "mm", "rm") at x, y; cut it off after `width` pixels."""
        mask, left, top = stamp(text, size, bold, anchor)
        if mask.width > width + 1:
            while text and font(size, bold).getlength(text + "…") > width:
                text = text[:-1]
            mask, left, top = stamp(text + "…", size, bold, anchor)
        self.image.paste(colour, (int(x) + left, int(y) + top), mask)

    def text_over(self, right: float, middle: float, text: str, size: int) -> None:
        """Draw text that ends at `right`, white where what lies below it is dark."""
        from PIL import Image

        mask, left, top = stamp(text, size, False, "rm")
        x, y = int(right) + left, int(middle) + top
        below = self.image.crop((x, y, x + mask.width, y + mask.height))
        dark = below.convert("L").point([255 * (grey < 128) for grey in range(256)])
        white, grey = (Image.new("RGB", mask.size, colour) for colour in (PAPER, FAINT))
        self.image.paste(Image.composite(white, grey, dark), (x, y), mask)

    def part(self, x: float, y: float, width: float, height: float, kind: str, line: str | None = None) -> None:
        """Draw a part of a bar, striped if its kind is, so that it can be told apart in grey."""
        colour, striped = PARTS[kind]
        self.box(x, y, width, height, colour, line)
        for place in range(round(x) + 2, round(x + width) - 1, 4) if striped else ():
            self.rule(place, y, place, y + height - 1, PAPER)

    def bar(self, x: float, y: float, width: float, height: float, bar: Bar) -> None:
        """Draw a bar; a part with a positive share is at least a pixel wide."""
        width = width if bar.length is None else max(4.0, width * bar.length)
        self.box(x, y, width, height, PAPER, LINE if bar.length is None else FAINT)
        at = x
        for part, kind in bar.parts:
            length = min(max(part * width, 1.0 if part > 0 else 0.0), x + width - at)
            self.part(at, y, length, height, kind)
            if PARTS[kind][1] and at > x and length > 1:
                self.rule(at, y, at, y + height - 1, PAPER)  # separates it from a neighbour of the same lightness
            at += length
        if bar.tick is not None:
            self.rule(x + width * bar.tick, y - 3, x + width * bar.tick, y + height + 2, FAINT)
        if bar.words:
            self.text_over(x + width - 6, y + height / 2, bar.words, 11)

    def due(self, x: float, y: float, width: float, height: float, remain_s: float) -> None:
        """Draw the time to a deadline: a bar from the middle to the right, or to the left for a missed deadline."""
        middle, length = x + width / 2, max(2.0, abs(deadline_place(remain_s)) * width / 2)
        if remain_s > 0:
            self.part(middle + 1, y, length, height, kinds.DECODES)
        else:
            self.part(middle - length, y, length, height, kinds.LATE)
        self.rule(middle, y - 2, middle, y + height + 1, FAINT)


def scene_picture(scene: Scene) -> np.ndarray:
    """Draw a scene as uint8[HEIGHT, WIDTH, 3]."""
    canvas = Canvas()
    clock = f"t = {scene.now_s:.3f} s"
    decisions = f"last action: {scene.action}; {scene.decision}" if scene.action else scene.decision
    room = WIDTH - 3 * LEFT - font(20, True).getlength(clock)
    canvas.text(LEFT, 22, scene.name, 18, bold=True, width=room)
    canvas.text(WIDTH - LEFT, 22, clock, 20, anchor="rm", bold=True)
    canvas.text(LEFT, 48, scene.progress, 12, FAINT)
    canvas.text(WIDTH - LEFT, 48, decisions, 13, anchor="rm", width=2 * WIDTH / 3 - 2 * LEFT)
    draw_figures(canvas, 64, scene.figures)
    x, y = float(LEFT), 194 if scene.meters else 124
    for words, remark, width, bar in scene.meters:
        canvas.text(x, 144, words)
        canvas.text(x + width, 144, remark, 11, FAINT, anchor="rm")
        canvas.bar(x, 156, width, 24, bar)
        x += width + 3 * GAP
    draw_deadlines(canvas, y, *scene.deadlines)
    tops = [y + 86, HEIGHT - 28 - BAND][: len(scene.bands)]
    for tables, top, bottom in zip(scene.bands, tops, [*tops[1:], HEIGHT - 20], strict=True):
        wide = (WIDTH - 2 * LEFT - 2 * GAP * (len(tables) - 1)) / len(tables)
        for k, table in enumerate(tables):
            draw = draw_tiles if table.tiles and table.count > table.lines else draw_table
            draw(canvas, table, LEFT + k * (wide + 2 * GAP), top, wide, bottom - top)
    x = float(LEFT)
    for kind, words in scene.legend:
        canvas.part(x, 702, 14, 11, kind, FAINT)
        canvas.text(x + 19, 707, words, 11, FAINT)
        x += 19 + font(11).getlength(words) + 16
    canvas.text(x, 707, scene.remark, 11, FAINT, width=WIDTH - x)
    return np.array(canvas.image)


def draw_figures(canvas: Canvas, y: float, figures: Sequence[tuple[str, str, bool]]) -> None:
    """Draw each figure with its title in a tile."""
    width = (WIDTH - 2 * LEFT - (len(figures) - 1) * GAP) / len(figures)
    for k, (title, figure, bad) in enumerate(figures):
        x = LEFT + k * (width + GAP)
        canvas.box(x, y, width, 52, TILE)
        canvas.text(x + 10, y + 14, title, 11, FAINT)
        canvas.text(x + 10, y + 35, figure, 18, LATE if bad else INK, bold=True, width=width - 16)


def draw_deadlines(canvas: Canvas, y: float, title: str, remain_s: np.ndarray) -> None:
    """Draw a histogram of the time to the next token's deadline, remain_s: float64[requests]."""
    canvas.text(LEFT, y + 6, title)
    width, height, base = WIDTH - 2 * LEFT, 42, y + 58
    middle, bar = WIDTH / 2, width / BINS
    places = np.array([deadline_place(one_s) for one_s in remain_s.tolist()])
    bins = np.round(places * (BINS // 2)).astype("i8")
    bins = np.where(bins == 0, np.where(remain_s > 0, 1, -1), bins)
    counts = np.bincount(bins + BINS // 2, minlength=BINS)
    for one_s, word in TICKS:
        x = middle + (width - bar) / 2 * (deadline_place(one_s) if one_s else 0.0)
        canvas.rule(x, y + 16, x, base, FAINT if one_s == 0 else LINE)
        canvas.text(x, base + 8, word, 10, FAINT, anchor="mm")
    for k in np.flatnonzero(counts):
        tall = max(2.0, (height - 2) * counts[k] / max(int(counts.max()), 4))
        kind = kinds.LATE if k < BINS // 2 else kinds.DECODES
        canvas.part(LEFT + k * bar + 1, base - tall, bar - 2, tall, kind)
    canvas.rule(LEFT, base, LEFT + width, base, FAINT)
    canvas.text(middle - 14, y + 6, "late", colour=LATE, anchor="rm", bold=True)
    canvas.text(middle + 14, y + 6, "in time", colour=DARK)
    words = f"{len(remain_s):,} requests; highest bar: {int(counts.max()):,}"
    canvas.text(LEFT + width, y + 6, words, 11, FAINT, anchor="rm")


def draw_table(canvas: Canvas, table: Table, x: float, y: float, width: float, height: float) -> None:
    """Draw the rows for which there is room, and the number of rows left out."""
    canvas.box(x, y, width, 20, TILE)
    canvas.text(x + 6, y + 10, table.title, bold=True, width=width - 12)
    shown, more = table.cut(table.lines if table.count <= table.lines else table.lines - 1)
    if font(12, True).getlength(table.title) > table.columns[0].pixels:
        y += 16  # a long title: the titles of columns go below it
    tall = min(table.tall, (height - 22) / max(1, min(table.count, table.lines)))
    place = x + 12
    for column in table.columns:
        wide = column.pixels - 12
        title = column.title if column is not table.columns[0] or not table.title else ""
        canvas.text(place + wide * column.right, y + 10, title, 11, FAINT, "rm" if column.right else "lm")
        place += column.pixels
    for k, one in enumerate(shown):
        draw_row(canvas, table, table.row(one), x, y + 22 + k * tall, width, tall)
    canvas.text(x + 22, y + 22 + (len(shown) + 0.5) * tall, more, 12, FAINT)


def draw_row(canvas: Canvas, table: Table, row: Row, x: float, y: float, width: float, height: float) -> None:
    middle, tall = y + height / 2, height * 0.6
    if row.tone == kinds.CHOSEN:
        canvas.box(x, y, width, height - 1, CHOSEN)
    if row.marked:
        canvas.arrow(x + 4, middle)
    place = x + 12
    for cell, column in zip(row.cells, table.columns, strict=True):
        wide = column.pixels - 12
        if isinstance(cell, Words):
            colour, bold = TONES[cell.tone]
            anchor = "rm" if column.right else "lm"
            canvas.text(place + wide * column.right, middle, cell.text, 12, colour, anchor, bold, column.pixels)
        elif isinstance(cell, Bar):
            canvas.bar(place, middle - tall / 2, wide, tall, cell)
        else:
            canvas.due(place, middle - tall / 2, wide, tall, cell.remain_s)
        place += column.pixels
    canvas.rule(x, y + height - 1, x + width - 1, y + height - 1)


def draw_tiles(canvas: Canvas, table: Table, x: float, y: float, width: float, height: float) -> None:
    """Draw each row as a tile: its first cell, its note, and its first two bars below one another."""
    across, down = next((grid for grid in GRIDS if grid[0] * grid[1] >= table.count), GRIDS[-1])
    wide, tall = width / across, (height - 24) / down
    bars = [
        column.title for column, cell in zip(table.columns, table.row(0).cells, strict=True) if isinstance(cell, Bar)
    ]
    canvas.text(x, y + 10, f"A tile each. Bars: {', '.join(bars[:2])}", colour=FAINT)
    shown, more = table.cut(across * down if table.count <= across * down else across * down - 1)
    for k, one in enumerate(shown):
        row, left, top = table.row(one), x + wide * (k % across), y + 24 + tall * (k // across)
        canvas.box(left + 1, top + 1, wide - 2, tall - 2, *((CHOSEN, INK) if row.marked else (TILE, None)))
        canvas.text(left + 6, top + tall * 0.24, getattr(row.cells[0], "text", ""), 11, bold=True)
        canvas.text(left + wide - 6, top + tall * 0.24, row.note.text, 10, TONES[row.note.tone][0], "rm")
        for place, bar in zip((0.43, 0.69), [cell for cell in row.cells if isinstance(cell, Bar)], strict=False):
            canvas.bar(left + 6, top + tall * place, wide - 12, tall * 0.2, bar)
    canvas.text(x + width - wide / 2, y + height - tall / 2, more, 11, anchor="mm")

"""Drawing of rectangles, bars and short texts into an array; what pictures of engines and clusters have in common."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEIGHT = 1280, 720
# As in the HTML reports. Neighbours in a bar differ in lightness, so that a picture is legible in grey.
INK, FAINT, LINE, TILE, PAPER = "#1b1b1b", "#5c5c5c", "#d5d5d5", "#f4f4f2", "#ffffff"
DARK, LIGHT, MOVING, LATE, CHOSEN = "#2c5f8a", "#9cc7e6", "#e3b23c", "#b02a1e", "#ffe9a8"


@functools.cache
def font(size: int, bold: bool = False) -> Any:
    """DejaVu Sans, which comes with matplotlib: its figures are equally wide."""
    import matplotlib
    from PIL import ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / f"DejaVuSans{'-Bold' if bold else ''}.ttf"), size)


@functools.lru_cache(maxsize=4096)
def stamp(text: str, size: int, bold: bool, anchor: str) -> tuple[Any, int, int]:
    """A text as a mask, and where its corner is from the anchor, in pixels.

    From frame to frame most texts are the same, and drawing them anew was most of the time of a picture.
    """
    from PIL import Image, ImageDraw

    face = font(size, bold)
    left, top, right, bottom = (round(side) for side in face.getbbox(text, anchor=anchor))
    mask = Image.new("L", (max(1, right - left + 1), max(1, bottom - top + 1)))
    ImageDraw.Draw(mask).text((-left, -top), text, 255, face, anchor)
    return mask, left, top


class Canvas:
    """A white picture of WIDTH x HEIGHT pixels; x to the right and y down, in pixels."""

    def __init__(self) -> None:
        from PIL import Image, ImageDraw

        self._image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def array(self) -> np.ndarray:
        """uint8[HEIGHT, WIDTH, 3]"""
        return np.array(self._image)

    def box(self, x: float, y: float, width: float, height: float, fill: str | None, line: str | None = None) -> None:
        if width >= 0.5 and height >= 0.5:
            right, bottom = max(x, x + width - 1), max(y, y + height - 1)
            self._draw.rectangle((round(x), round(y), round(right), round(bottom)), fill, line)

    def rule(self, x0: float, y0: float, x1: float, y1: float, colour: str = LINE, width: int = 1) -> None:
        self._draw.line((round(x0), round(y0), round(x1), round(y1)), colour, width)

    def polygon(self, points: Sequence[tuple[float, float]], fill: str) -> None:
        self._draw.polygon([(round(x), round(y)) for x, y in points], fill)

    def text(
        self, x: float, y: float, text: str, size: int = 12, colour: str = INK, anchor: str = "lm", bold: bool = False
    ) -> None:
        """anchor: l, m or r of the text is at x; m is its middle at y, s its base line (Pillow's anchors)."""
        mask, left, top = stamp(text, size, bold, anchor)
        self._image.paste(colour, (int(x) + left, int(y) + top), mask)

    def fitted(self, x: float, y: float, text: str, width: float, **style: Any) -> None:
        """The text, cut off where it would be wider than `width`."""
        face = font(style.get("size", 12), style.get("bold", False))
        if face.getlength(text) > width:
            while text and face.getlength(text + "…") > width:
                text = text[:-1]
            text += "…"
        self.text(x, y, text, **style)

    def stripes(self, x: float, y: float, width: float, height: float, colour: str = PAPER, step: int = 4) -> None:
        """Vertical stripes, which mark a part of a bar in grey too."""
        for place in range(round(x) + step // 2, round(x + width) - 1, step):
            self.rule(place, y, place, y + height - 1, colour)

    def stacked(
        self, x: float, y: float, width: float, height: float, parts: Sequence[tuple[float, str, bool]]
    ) -> None:
        """A bar whose parts are (share of the width, colour, striped), from the left; the rest is empty.

        A part that is not nothing is at least a pixel wide.
        """
        self.box(x, y, width, height, PAPER, LINE)
        at = x
        for part, colour, striped in parts:
            length = min(max(part * width, 1.0 if part > 0 else 0.0), x + width - at)
            self.box(at, y, length, height, colour)
            if striped and at > x and length > 1:
                self.rule(at, y, at, y + height - 1, PAPER)  # next to a part as dark
            if striped:
                self.stripes(at, y, length, height)
            at += length

    def tile(self, x: float, y: float, width: float, title: str, value: str, colour: str = INK) -> None:
        """A figure and what it is, 52 high."""
        self.box(x, y, width, 52, TILE)
        self.text(x + 10, y + 14, title, 11, FAINT)
        self.fitted(x + 10, y + 35, value, width - 16, size=18, colour=colour, bold=True)

    def legend(self, y: float, parts: Sequence[tuple[str, str, bool]], words: str = "") -> None:
        """Patches (text, colour, striped) in a row, and a remark."""
        x = 20.0
        for text, colour, striped in parts:
            self.box(x, y - 5, 14, 11, colour, FAINT)
            if striped:
                self.stripes(x + 1, y - 4, 12, 9)
            self.text(x + 19, y, text, 11, FAINT)
            x += 19 + font(11).getlength(text) + 16
        self.text(x, y, words, 11, FAINT)

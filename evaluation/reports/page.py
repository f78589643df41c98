"""Parts of a self-contained HTML page. They escape the texts that they are given."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from servegym.evaluation.reports.style import CSS

NONE = "-"
# The browser refuses to load anything that is not in the file.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# Parts of an SVG file that an SVG element does not need; their links would look like outside resources.
NOT_INLINE = re.compile(r'<metadata>.*?</metadata>|\s+xmlns(:\w+)?="[^"]*"|<!--.*?-->', re.DOTALL)
ID = re.compile(r'\s+id="([^"]*)"')
REFERENCE = re.compile(r"#([A-Za-z][\w-]*)")
BLACK = re.compile(r"#000000\b")


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole document. body: HTML."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{_lines(body)}</main>
</body>
</html>
"""


def _lines(parts: Iterable[str]) -> str:
    return "".join(f"{part}\n" for part in parts)


def section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{_lines(parts)}</section>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{escape(kind)}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    return f"<ul>\n{_lines(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def details(title: str, *parts: str) -> str:
    """Return a folded section."""
    return f"<details>\n<summary>{escape(title)}</summary>\n{_lines(parts)}</details>"


def tiles(figures: Mapping[str, str]) -> str:
    """Return headline figures: names, and values with their units."""
    each = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures.items())
    return f'<dl class="tiles">\n{_lines(each)}</dl>'


def figure(picture: str, caption: str) -> str:
    """Return a picture with its caption. picture: HTML (`inline_svg`, `inline_png`)."""
    return f"<figure>\n{picture}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def drawing(picture: Figure, name: str, caption: str) -> str:
    """Return a picture with its caption, drawn in the page. name: as of `inline_svg`."""
    return figure(inline_svg(picture, name, caption), caption)


def image(path: str | Path, caption: str) -> str:
    """Return the picture in a PNG file with its caption."""
    return figure(inline_png(path, caption), caption)


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return a picture as an <svg> element, in the colour of the text.

    Black becomes the colour of the surrounding text, and there is no background, so that the page decides on light or
    dark. Text stays text, which can be searched, in the reader's font. name: of letters and digits, unique in the page.
    description: for readers who cannot see it.
    """
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = NOT_INLINE.sub("", text[text.index("<svg") :]).replace("xlink:href", "href").rstrip()
    referenced = set(REFERENCE.findall(re.sub(r"#[0-9a-f]{6}\b", "", text)))
    text = ID.sub(lambda found: found[0] if found[1] in referenced else "", text)
    label = f' role="img" aria-label="{escape(description)}"'
    return BLACK.sub("currentColor", text.replace("<svg", f"<svg{label}", 1))


def inline_png(path: str | Path, description: str) -> str:
    data = base64.b64encode(Path(path).read_bytes()).decode("ascii")
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'


def table(frame: pd.DataFrame, kind: str = "") -> str:
    """Return a table whose first column is text and whose others are numbers.

    kind: "units": the second column is text too; "facts": all columns are text; "whole": cells do not wrap.
    """
    shown = frame.map(text_of)
    with pd.option_context("display.max_colwidth", None):
        html = shown.to_html(index=False, border=0, escape=True, justify="unset", na_rep=NONE)
    return f'<div class="wide {kind}">\n{html}\n</div>'


def facts(document: Mapping[str, Any]) -> str:
    """Return a nested document as a table of dotted names and values."""
    return table(pd.DataFrame(flat(document), columns=["", "value"]), "facts")


def flat(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the leaves of a nested mapping: ("a.b", value)."""
    found: list[tuple[str, Any]] = []
    for key, value in document.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def text_of(value: Any) -> str:
    """Return a value as text: whole numbers whole, others with four significant digits, None as a dash."""
    if value is None:
        return NONE
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isnan(number):
            return NONE
        return f"{number:,.0f}" if 1000 <= abs(number) < math.inf else f"{number:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of, value)) or NONE
    return str(value)

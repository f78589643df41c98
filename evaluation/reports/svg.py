"""A matplotlib figure as SVG that is part of an HTML page: no document around it, ink in the colour of the text."""

from __future__ import annotations

import io
import re
from html import escape

import matplotlib
from matplotlib.figure import Figure

# What an SVG file needs and an SVG element of HTML does not; the links in it would look like outside resources.
NOT_INLINE = re.compile(r'<metadata>.*?</metadata>|\s+xmlns(:\w+)?="[^"]*"|<!--.*?-->', re.DOTALL)
ID = re.compile(r'\s+id="([^"]*)"')
REFERENCE = re.compile(r"#([A-Za-z][\w-]*)")
BLACK = re.compile(r"#000000\b")


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """An <svg> element. name: of letters and digits, different for each figure of a page; description: for readers who
    cannot see it.

    Black becomes the colour of the text around and the background is left out, so that the page decides on light and
    dark. Text stays text: it can be searched, and is drawn in the reader's font.
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

"""A matplotlib figure as an SVG element of an HTML page, in the colour of the text."""

from __future__ import annotations

import io
import re
from html import escape

import matplotlib
from matplotlib.figure import Figure

# Parts of an SVG file that an SVG element does not need; their links would look like outside resources.
NOT_INLINE = re.compile(r'<metadata>.*?</metadata>|\s+xmlns(:\w+)?="[^"]*"|<!--.*?-->', re.DOTALL)
ID = re.compile(r'\s+id="([^"]*)"')
REFERENCE = re.compile(r"#([A-Za-z][\w-]*)")
BLACK = re.compile(r"#000000\b")


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return an <svg> element.

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

"""What a comparison goes through: loads, or in closed loops numbers of clients, which have no rate."""

from __future__ import annotations

from collections.abc import Container

from servegym.scenarios.load import load_title

LOAD, CLIENTS = "load", "clients"  # the column of cells and summaries that holds the point


def axis_of(names: Container[str]) -> str:
    """The column of a row, of cells or of a summary. names: its columns, or itself."""
    return CLIENTS if CLIENTS in names else LOAD


def point_title(axis: str, point: float) -> str:
    """As a heading: "Load 0.7 (medium)", "64 clients"."""
    if axis == LOAD:
        return f"Load {load_title(point)}"
    return "1 client" if point == 1 else f"{point:.0f} clients"

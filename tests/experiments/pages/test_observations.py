"""docs/observations.md says what the functions write."""

from pathlib import Path

import pytest

from experiments.pages.observations import PageError, table, written
from servegym.baselines.observations.caching import caching_layout
from servegym.baselines.observations.day import day_layout
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.observations.fields import Field
from servegym.baselines.observations.queue import queue_layout
from servegym.baselines.observations.roles import roles_layout
from servegym.baselines.observations.routing import routing_layout
from servegym.baselines.observations.scheduling import scheduling_layout
from servegym.baselines.observations.sessions import caching_sessions_layout, scheduling_sessions_layout
from servegym.baselines.observations.tiers import tiers_layout

PAGE = Path(__file__).parents[3] / "docs" / "observations.md"


def test_the_page_is_what_is_generated():
    text = PAGE.read_text("utf-8")
    assert written(text) == text, "run: python -m experiments.pages.observations docs/observations.md"


def test_the_sizes_on_the_page_are_those_of_the_layouts():
    text = PAGE.read_text("utf-8")
    sizes = {"observe_engine": (engine_layout(), "{}"), "observe_queue": (queue_layout(1), "{} + {} a slot"),
             "observe_scheduling": (scheduling_layout(1), "{} + {} a slot"),
             "observe_routing": (routing_layout(1), "{} + {} a slot"),
             "observe_caching": (caching_layout(1), "{} + {} a slot"),
             "observe_scheduling_sessions": (scheduling_sessions_layout(1), "{} + {} a slot"),
             "observe_caching_sessions": (caching_sessions_layout(1), "{} + {} a slot"),
             "observe_tiers": (tiers_layout(1), "{} + {} a slot"),
             "observe_day": (day_layout(1), "{} + {} a slot"),
             "observe_roles": (roles_layout(1), "{} + {} a slot")}  # fmt: skip
    for function, (shape, size) in sizes.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{function}` |")]
        assert row.endswith("| " + size.format(len(shape.whole_fields), len(shape.slot_fields)) + " |")


def test_names_are_unique_and_bounds_in_order():
    for shape in (engine_layout(), queue_layout(3), scheduling_layout(3), routing_layout(3), caching_layout(3),
                  scheduling_sessions_layout(3), caching_sessions_layout(3), tiers_layout(3),
                  day_layout(3), roles_layout(3)):  # fmt: skip
        names = [name for name, _ in shape]
        assert len(set(names)) == len(names) == shape.size == len(shape.low)
        assert (shape.low < shape.high).all()


def test_fields_that_differ_in_a_number_alone_share_a_row():
    x, y = Field("x", -1, 1, "tokens"), Field("y", 0, 1, "in tier 1")
    fields = (x, *(Field(f"in_tier_{k}", 0, 1, f"in tier {k}") for k in range(2)), y)
    assert table(fields, 3).splitlines()[2:] == [
        "| 3 | `x`, -1 to 1 | tokens |",
        "| 4 to 5 | `in_tier_0` to `in_tier_1` | in tier 0, ..., 1 |",
        "| 6 | `y` | in tier 1 |",
    ]


def test_a_page_that_lacks_a_table_is_refused():
    with pytest.raises(PageError, match="tables engine; it should have engine; queue"):
        written("<!-- fields: engine -->\n")

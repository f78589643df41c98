"""Write the tables of docs/observations.md anew, from the fields of the observations.

python -m experiments.pages.observations docs/observations.md

A page says where a table goes, "<!-- fields: NAME -->" on a line of its own; what is between that line and
"<!-- end of table -->" is written here.
"""

import itertools
import re
import sys
from pathlib import Path

from experiments.pages.words import escaped
from servegym.baselines.observations.caching import CACHING_FIELDS, CACHING_WHOLE_FIELDS
from servegym.baselines.observations.day import DAY_FIELDS, DAY_SCALED_FIELDS
from servegym.baselines.observations.engine import ENGINE_FIELDS
from servegym.baselines.observations.fields import Field
from servegym.baselines.observations.queue import QUEUE_WHOLE_FIELDS, REQUEST_FIELDS
from servegym.baselines.observations.roles import ROLES_FIELDS, ROLES_SCALED_FIELDS
from servegym.baselines.observations.routing import ARRIVAL_FIELDS, ROUTED_FIELDS
from servegym.baselines.observations.scheduling import SCHEDULING_WHOLE_FIELDS, WORTHY_REQUEST_FIELDS
from servegym.baselines.observations.sessions import SESSION_FIELDS
from servegym.baselines.observations.tiers import CLUSTER_FIELDS, OF_TIERS, SCALED_FIELDS, TIER_FIELDS
from servegym.errors import ServegymError
from servegym.evaluation.markdown import narrow_header, row

# The fields of each table, and the place of the first of them in its part.
TABLES = {
    "engine": (ENGINE_FIELDS, 0),
    "queue": (QUEUE_WHOLE_FIELDS[len(ENGINE_FIELDS) :], len(ENGINE_FIELDS)),
    "queue, slot": (REQUEST_FIELDS, 0),
    "scheduling": (SCHEDULING_WHOLE_FIELDS[len(QUEUE_WHOLE_FIELDS) :], len(QUEUE_WHOLE_FIELDS)),
    "scheduling, slot": (WORTHY_REQUEST_FIELDS[len(REQUEST_FIELDS) :], len(REQUEST_FIELDS)),
    "routing": (ARRIVAL_FIELDS, 0),
    "routing, slot": (ROUTED_FIELDS, 0),
    "caching": (CACHING_WHOLE_FIELDS[len(ARRIVAL_FIELDS) :], len(ARRIVAL_FIELDS)),
    "caching, slot": (CACHING_FIELDS[len(ROUTED_FIELDS) :], len(ROUTED_FIELDS)),
    "sessions": (SESSION_FIELDS, 0),
    "tiers": (CLUSTER_FIELDS[:OF_TIERS], 0),
    "tiers, tier": (TIER_FIELDS, 0),
    "tiers, slot": (SCALED_FIELDS, 0),
    "day": (DAY_FIELDS[len(CLUSTER_FIELDS) :], len(CLUSTER_FIELDS)),
    "day, slot": (DAY_SCALED_FIELDS[len(SCALED_FIELDS) :], len(SCALED_FIELDS)),
    "roles": (ROLES_FIELDS[len(CLUSTER_FIELDS) :], len(CLUSTER_FIELDS)),
    "roles, slot": (ROLES_SCALED_FIELDS[len(SCALED_FIELDS) :], len(SCALED_FIELDS)),
}
END = "<!-- end of table -->"
NUMBER = re.compile(r"\d+$")
PLACE = re.compile(rf"^<!-- fields: (.+?) -->\n(?:(?:(?!<!--).*\n)*{END}\n)?", re.MULTILINE)


class PageError(ServegymError):
    """The page names an unknown table, or lacks one."""


def table(fields: tuple[Field, ...], first: int) -> str:
    """The fields as a Markdown table: place in the part, name, bounds if they are not 0 to 1, meaning.

    Fields that differ in the number at their end alone, such as `in_tier_0` and `in_tier_1`, share a row.
    """
    rows = (row(*cells(list(group))) for _, group in itertools.groupby(enumerate(fields, first), unnumbered))
    return "\n".join([*narrow_header("", "name", "what"), *rows]) + "\n"


def unnumbered(placed: tuple[int, Field]) -> tuple[str, str, float, float]:
    """What fields of one row have in common: name and meaning without the number at their end, and the bounds."""
    _, field = placed
    name, doc = (NUMBER.sub("", text) for text in (field.name, field.doc))
    return (name, doc if name != field.name else field.doc, field.low, field.high)


def cells(group: list[tuple[int, Field]]) -> tuple[str, str, str]:
    (first, field), (last, other) = group[0], group[-1]
    place, name, doc = str(first), f"`{field.name}`", field.doc
    if last > first:
        place, name = f"{first} to {last}", f"{name} to `{other.name}`"
        doc += f", ..., {NUMBER.findall(other.doc)[0]}"
    if (field.low, field.high) != (0, 1):
        name += f", {field.low:g} to {field.high:g}"
    return place, name, escaped(doc)


def written(text: str) -> str:
    """The text of the page as it should be. Raises PageError unless it has a place for each table."""
    named = PLACE.findall(text)
    if sorted(named) != sorted(TABLES):
        raise PageError(f"the page has tables {'; '.join(named)}; it should have {'; '.join(TABLES)}")
    return PLACE.sub(lambda found: f"<!-- fields: {found[1]} -->\n{table(*TABLES[found[1]])}{END}\n", text)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(written(page.read_text("utf-8")), "utf-8")

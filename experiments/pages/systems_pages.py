"""Write the generated parts of docs/systems anew: the tables of parameters, and the list of policies in its README.

python -m experiments.pages.systems_pages docs/systems

A page says where a table goes, "<!-- parameters: NAME -->" on a line of its own; policies with the same parameters
share one, "<!-- parameters: NAME, NAME -->". If several kinds of policy have a name, it is "KIND NAME" there. The lines
from there to "<!-- end of table -->" are written here.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from experiments.pages.words import escaped
from servegym.baselines.registry import registered
from servegym.cli.policies import default_text, range_text
from servegym.errors import ExperimentError
from servegym.evaluation.markdown import table
from servegym.simulator.policies.policy import Policy

COMMAND = "python -m experiments.pages.systems_pages docs/systems"
README = "README.md"
END = "<!-- end of table -->"
PARAMETERS = re.compile(rf"^<!-- parameters: (.+?) -->\n(?:(?:(?!<!--).*\n)*{END}\n)?", re.MULTILINE)
POLICIES = re.compile(rf"^<!-- policies -->\n(?:(?:(?!<!--).*\n)*{END}\n)?", re.MULTILINE)
NOTHING = "No parameters.\n"


def policies() -> dict[str, Policy]:
    """Every registered policy by its name, or by "kind name" if several kinds have that name."""
    found = registered()
    times = Counter(policy.name for policy in found)
    return {one.name if times[one.name] == 1 else f"{one.kind} {one.name}": one for one in found}


def policy_names() -> list[str]:
    """Of every registered policy, as pages name them."""
    return sorted(policies())


def policy(name: str) -> Policy:
    return policies()[name]


def written(folder: Path) -> dict[Path, str]:
    """Every page of docs/systems as it should be.

    Raises ExperimentError for a name that is no policy, a policy that is on no page or on several, and policies that
    share a table but not their parameters.
    """
    texts = {path: path.read_text("utf-8") for path in sorted(folder.glob("*.md"))}
    check_pages({path.name: documented(text) for path, text in texts.items()})
    index = policy_list({path: text for path, text in texts.items() if path.name != README})
    return {
        path: replaced(POLICIES, lambda _: index, replaced(PARAMETERS, shared_table, text))
        for path, text in texts.items()
    }


def replaced(marker: re.Pattern[str], table: Callable[[str], str], text: str) -> str:
    """The text with a fresh table behind each marker; `table` is called with the names in the marker."""

    def section(found: re.Match[str]) -> str:
        first_line = found[0].partition("\n")[0]
        return f"{first_line}\n\n{table(found[1] if marker.groups else '')}\n{END}\n"

    return marker.sub(section, text)


def documented(text: str) -> list[str]:
    """The policies whose parameters a page has, in its order."""
    return [name for found in PARAMETERS.finditer(text) for name in found[1].split(", ")]


def check_pages(pages: dict[str, list[str]]) -> None:
    """Raise ExperimentError unless every registered policy, and nothing else, is on one page, once."""
    known = policies()
    for name in sorted({name for names in pages.values() for name in names} | set(known)):
        places = [page for page, names in pages.items() for named in names if named == name]
        if name not in known:
            raise ExperimentError(f"{places[0]}: there is no scheduler, router or scaler {name}")
        if len(places) != 1:
            where = f"on {', '.join(places)}" if places else "on no page"
            raise ExperimentError(f"the parameters of {name} are {where}; they should be on one page of docs/systems")


def shared_table(names: str) -> str:
    """The table of the policies that a marker names, which have the same parameters."""
    known = policies()
    first, *others = [known[name] for name in names.split(", ")]
    for other in others:
        if other.parameters != first.parameters:
            raise ExperimentError(f"{first.name} and {other.name} share a table but differ in their parameters")
    return parameter_table(first)


def parameter_table(policy: Policy) -> str:
    """The parameters of a policy, as Markdown."""
    if not policy.parameters:
        return NOTHING
    rows = [
        (f"`{p.name}`", default_text(p, "`"), range_text(p, "`"), p.unit, p.doc, p.source)
        for p in policy.parameters
    ]  # fmt: skip
    columns = ("parameter", "default", "range", "unit", "meaning", "source")
    return table(columns, (map(escaped, cells) for cells in rows), words=len(columns))


def policy_list(texts: dict[Path, str]) -> str:
    """A row a policy, page by page, each with the link to its system."""
    known, rows = policies(), []
    for path, text in texts.items():
        title = text.partition("\n")[0].removeprefix("# ")
        rows += [(f"[{title}]({path.name})", f"`{name}`", known[name].doc) for name in documented(text)]
    return table(("system", "policy", "in one line"), (map(escaped, cells) for cells in rows), words=3)


def main(arguments: list[str]) -> None:
    folder = Path(*arguments)
    if len(arguments) != 1 or not folder.is_dir():
        raise SystemExit(f"it takes one folder: {COMMAND}")
    try:
        pages = written(folder)
    except ExperimentError as error:
        raise SystemExit(str(error)) from None
    for path, text in pages.items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""A profile that was made and not measured: written to a file, and what is known of it on the console."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegym.cli import options
from servegym.cli.output import console_for, new_table, number, write_json

if TYPE_CHECKING:
    from servegym.simulator.memory.kv_groups import KvCacheGroup


def in_words(groups: tuple[KvCacheGroup, ...]) -> str:
    """As "6 window of 1,024, 1 full"."""
    said = []
    for group, count in Counter(groups).items():
        kind = f"{'local ' * group.local}window of {group.window:,}" if group.window else "full"
        said.append(f"{count} {'state' if group.state else kind}")
    return ", ".join(said) or "1 full"


def keep_profile(document: dict[str, Any], out: Path | None, fit: str, json: options.Json) -> None:
    """Write a profile's document and show it. out: None: a file of its name. fit: what its own error is called."""
    from servegym.latency_models.documents import to_text
    from servegym.latency_models.profile import error_class, parse_profile
    from servegym.latency_models.stated_errors import expected, fit_percent

    made = parse_profile(document, document["name"])
    path = out or Path(f"{document['name']}.json")
    path.write_text(to_text(document), encoding="utf-8")
    table = new_table("profile", "", numbers=False)
    for name, value in (
        ("name", made.name),
        ("error class", error_class(made)),
        ("rests on", made.basis),
        ("error against measurements", expected(made)),
        (fit, number(fit_percent(made), 2)),
        ("KV cache, tokens", number(made.kv.total_blocks * made.kv.block_tokens)),
        ("KV cache groups", in_words(made.kv.groups)),
        ("time between tokens of one request, ms", number(1e3 * made.idle_tpot_s, 2)),
    ):
        table.add_row(name, value)
    console = console_for(json)
    console.print(table, f"written: {path}", soft_wrap=True)
    if json is not None:
        write_json(document | {"error_class": error_class(made), "files": [path]}, json)

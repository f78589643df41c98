"""The command line of a study: the page it writes, and options by their defaults."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

Settings = TypeVar("Settings")


def parse(doc: str | None, arguments: Sequence[str] | None = None, /, **defaults: Any) -> argparse.Namespace:
    """Reads `PAGE --name VALUE...`.

    doc: the study's docstring; its first line is the help. arguments: None: the process's. defaults: by the name of the
    option, which takes several values where its default is a tuple.
    """
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("page", type=Path, help="where the page is written")
    for name, default in defaults.items():
        several = isinstance(default, tuple)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default[0] if several else default),
            nargs="+" if several else None,
            default=default,
            help="default: %(default)s",
        )
    return parser.parse_args(arguments)


def settings_from_command_line(kind: type[Settings], doc: str | None) -> Settings:
    """The settings' defaults, changed by options of their names."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=type(field.default), default=field.default, help=" ")
    return kind(**vars(parser.parse_args()))

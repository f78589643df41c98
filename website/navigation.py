"""The patterns of a navigation, and the pages they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any


def paths_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from paths_of(item)


def filled(nav: Any, pages: list[str], named: set[str]) -> Any:
    """The navigation with pages in the place of patterns: each page once, where it first matches.

    named: pages that have a place of their own, and those found so far, which are added to it.
    """
    if isinstance(nav, str):
        return nav
    if isinstance(nav, dict):
        return {title: filled(item, pages, named) for title, item in nav.items()}
    items: list[Any] = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            found = [page for page in pages if matches(page, item) and page not in named]
            named.update(found)
            items += found
        else:
            items.append(filled(item, pages, named))
    return items


def matches(page: str, pattern: str) -> bool:
    """Whether a pattern stands for a page; a star does not reach into folders."""
    return fnmatchcase(page, pattern) and page.count("/") == pattern.count("/")

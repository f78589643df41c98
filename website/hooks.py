"""What the site has beside docs/: pages from the repository's root, the reference, and the patterns of `nav`."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from website.lists import with_lists
from website.navigation import filled, paths_of
from website.reference import reference_pages

ROOT = Path(__file__).parents[1]
# Pages of the site by the file of the repository that they are; links to those files lead to these pages.
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
STYLE = "site.css"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
SOURCE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([a-z_/]+\.py)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, then put into the navigation what its patterns stand for."""
    for name, page in ROOT_PAGES.items():
        text = LINK.sub(from_root, with_lists((ROOT / name).read_text("utf-8")))
        files.append(File.generated(config, page, content=text))
    for page, text in reference_pages().items():
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, STYLE, abs_src_path=str(Path(__file__).with_name(STYLE))))
    pages = sorted(file.src_uri for file in files.documentation_pages())
    config.nav = filled(config.nav, pages, named=set(paths_of(config.nav)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/: those to pages of the root lead there; a source file is named, as the site has none."""
    depth = page.file.src_uri.count("/")

    def mended(found: re.Match[str]) -> str:
        opening, target, anchor, closing = found.groups()
        up = "../" * (depth + 1)
        if not target.startswith(up) or target.startswith(up + "../"):
            return found.group()
        name = target.removeprefix(up)
        return f"{opening}{'../' * depth}{ROOT_PAGES.get(name, target)}{anchor or ''}{closing}"

    return with_lists(LINK.sub(mended, SOURCE.sub(r"\1 (`\2`)", markdown)))


def from_root(found: re.Match[str]) -> str:
    """A link of a page of the root, as its place in the site asks for."""
    opening, target, anchor, closing = found.groups()
    if target.startswith("docs/"):
        target = target.removeprefix("docs/")
    return f"{opening}{ROOT_PAGES.get(target, target)}{anchor or ''}{closing}"

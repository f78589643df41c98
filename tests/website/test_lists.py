"""Lists of the pages, as the site's Markdown reads them."""

from website.lists import with_lists


def test_nested_items_get_four_spaces_and_lists_a_blank_line() -> None:
    text = "Two things:\n- one\n  - below\n    goes on\n- two\n\nEnd\n"
    assert with_lists(text) == "Two things:\n\n- one\n    - below\n    goes on\n- two\n\nEnd\n"


def test_what_is_no_list_stays() -> None:
    for text in ("a - b\n", "```\nx:\n- y\n  - z\n```\n", "| - |\n", "- one\n- two\n", "text\n\n    - code\n"):
        assert with_lists(text) == text

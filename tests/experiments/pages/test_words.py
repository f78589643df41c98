"""Texts that pages of studies share."""

from experiments.pages.words import escaped, with_versions


def test_words() -> None:
    assert escaped("a|b") == r"a\|b"
    assert with_versions({"numpy": "2.0", "numba": "0.61"}) == "numpy 2.0, numba 0.61"

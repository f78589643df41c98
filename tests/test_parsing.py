"""JSON and YAML that say something else than meant, or nest deeper than a parser goes, are one line."""

import pytest

from servegym.parsing import Malformed, parse_json
from servegym.yaml_parsing import parse_yaml

DEEP = 20_000


@pytest.mark.parametrize("text", ["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP])
@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_what_is_nested_too_deeply(parse, text):
    with pytest.raises(Malformed, match="nested too deeply"):
        parse(text)


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_a_key_that_is_given_twice(parse):
    with pytest.raises(Malformed, match="the key 'a' is given twice"):
        parse('{"b": {"a": 1, "c": 2, "a": 1}}')


@pytest.mark.parametrize(("number", "read"), [("010", 8), ("0x10", 16), ("1:30", 90), ("0b11", 3), ("1:30.5", 90.5)])
def test_numbers_that_yaml_reads_otherwise(number, read):
    with pytest.raises(Malformed, match=f"line 2: {number} is {read} in YAML"):
        parse_yaml(f"a: 1\nengines: {number}\n")


@pytest.mark.parametrize("text", ["1_0", "1_0.5", "'1_0'", "[2, 1_0]", "slide-batching:gamma=1_0"])
def test_numbers_with_underscores(text):
    with pytest.raises(Malformed, match=r"line 2: .*1_0.*: it should be 10.*, without underscores"):
        parse_yaml(f"a: mine_2.csv\nload: {text}\n")


def test_where_a_text_is_wrong():
    with pytest.raises(Malformed, match=r"line 2 column 1: .*; is it cut off\?"):
        parse_json('{"a": 1,\n')
    with pytest.raises(Malformed, match="line 2: "):
        parse_yaml("a: [1\nb: 2\n")


def test_plain_data():
    text = "base: &base {a: 1, b: -2}\nother: {<<: *base, b: 1000}\nlist: [0, 1.5, yes, null, 2024-01-01x]\n"
    assert parse_yaml(text) == {
        "base": {"a": 1, "b": -2}, "other": {"a": 1, "b": 1000}, "list": [0, 1.5, True, None, "2024-01-01x"],
    }  # fmt: skip
    assert parse_yaml("[1e3, 1.5e1, 3e-4, -.5E+1, 1e400, 1e3x, 1.4.2, 2026-01-01]") == [
        1000, 15, 0.0003, -5, float("inf"), "1e3x", "1.4.2", "2026-01-01",
    ]  # fmt: skip
    assert isinstance(parse_yaml("1e3"), int)  # where a whole number belongs
    assert parse_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}

"""The file that keeps a study's rows."""

import json

import pytest

from servegym.errors import ExperimentError
from servegym.evaluation.ledger import Ledger, differences, kept_rows
from servegym.evaluation.running import ThreadRunner

IDENTITY = {"study": "of a ledger", "seeds": 2}


def ledger(path, identity=IDENTITY, check=lambda row: None, fresh=False) -> Ledger:
    return Ledger(path, identity, check, fresh)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "cells.jsonl"
    with ledger(path) as kept:
        kept.append({"seed": 0})
        kept.append({"seed": 1})
    return path


def rows_of(path, **options) -> list:
    with ledger(path, **options) as kept:
        return kept.rows


def test_rows_come_back(path):
    assert rows_of(path) == [{"seed": 0}, {"seed": 1}]


def test_a_row_is_in_the_file_when_append_returns(tmp_path):
    path = tmp_path / "cells.jsonl"
    with ledger(path) as kept:
        kept.append({"seed": 0})
        assert json.loads(path.read_text().splitlines()[-1]) == {"seed": 0}


@pytest.mark.parametrize("torn", [b'{"see', b"{", b'{"seed": 2}'])
def test_a_torn_last_line_is_dropped(path, torn):
    content = path.read_bytes()
    path.write_bytes(content + torn)
    assert rows_of(path) == [{"seed": 0}, {"seed": 1}]
    assert path.read_bytes() == content


def test_a_torn_header_is_written_again(path):
    path.write_bytes(path.read_bytes()[:10])
    assert rows_of(path) == []
    assert rows_of(path) == []


def test_a_damaged_line_is_named(path):
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], b'{"see', lines[2], b""]))
    with pytest.raises(ExperimentError, match="line 2 is damaged"):
        rows_of(path)


def test_rows_are_checked(path):
    with pytest.raises(ExperimentError, match="line 3: seed 1 is bad; --fresh"):
        rows_of(path, check=lambda row: "seed 1 is bad" if row["seed"] else None)


def test_another_study_is_refused(path):
    with pytest.raises(ExperimentError, match="seeds 2 there, 3 asked for"):
        rows_of(path, identity=IDENTITY | {"seeds": 3})
    assert rows_of(path, identity=IDENTITY | {"seeds": 3}, fresh=True) == []


def test_long_differences_are_only_named(path):
    with pytest.raises(ExperimentError, match=r"holds another comparison: other study;"):
        rows_of(path, identity=IDENTITY | {"study": "x" * 200})


def test_what_follows_from_another_difference_is_not_said():
    found = {"schedulers": ["edf"], "code": {"loop": "a", "edf": "b"}}
    others = {"schedulers": ["sjf"], "code": {"loop": "a", "sjf": "c"}}
    assert differences(found, others) == 'schedulers ["edf"] there, ["sjf"] asked for'
    assert differences(found, others | {"code": {"loop": "d"}}).startswith(
        'schedulers ["edf"] there, ["sjf"] asked for, code'
    )
    assert differences(found, {**found, "code": {"loop": "a"}}).startswith("code")


@pytest.mark.parametrize("content", ["[1]\n", '{"seed": 0}\n', "not JSON\n", "notes without a line feed"])
def test_what_is_no_ledger_is_refused(tmp_path, content):
    path = tmp_path / "cells.jsonl"
    path.write_text(content)
    with pytest.raises(ExperimentError, match=r"line 1 is damaged|not a record"):
        rows_of(path)
    assert path.read_text() == content


def test_one_process_at_a_time(path):
    with ledger(path), pytest.raises(ExperimentError, match="another process"):
        rows_of(path)
    assert len(rows_of(path)) == 2


def test_kept_rows_are_those_of_the_items_in_their_order_and_only_what_is_missing_is_run(tmp_path):
    def ledger():
        return Ledger(tmp_path / "runs.jsonl", {"study": "squares"}, lambda row: None)

    def squares(items):
        told, begun = [], []
        rows = kept_rows(
            ledger(), {f"of {n}": n for n in items}, lambda row: row["key"],
            lambda n: {"key": f"of {n}", "square": n * n}, lambda done, of: told.append((done, of)), ThreadRunner(1),
            prepare=lambda: begun.append(True),
        )  # fmt: skip
        return [row["square"] for row in rows], told, begun

    assert squares([3, 1]) == ([9, 1], [(0, 2), (1, 2), (2, 2)], [True])
    assert squares([1, 2, 3]) == ([1, 4, 9], [(2, 3), (3, 3)], [True])
    assert squares([2]) == ([4], [(1, 1)], [])
    with ledger() as kept:
        assert [row["square"] for row in kept.rows] == [9, 1, 4]

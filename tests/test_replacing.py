"""Files and folders that are replaced whole or not at all."""

from pathlib import Path

import pytest

from servegym.replacing import replacing


def test_a_file_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for name in ("old", "new"):
        with replacing(path) as draft:
            draft.mkdir()
            (draft / name).touch()
    assert [one.name for one in path.iterdir()] == ["new"] and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("folder", [False, True])
def test_what_was_there_stays_if_the_block_fails(folder: bool, tmp_path: Path) -> None:
    path = tmp_path / "path"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as draft:
        if folder:
            draft.mkdir()
        (draft / "part" if folder else draft).write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_two_may_replace_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as one, replacing(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none" / "file") as draft:
        draft.write_text("new")

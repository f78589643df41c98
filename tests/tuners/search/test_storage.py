"""Storages of studies: a journal outlives killed writers, and what is wrong is one line."""

import re
import resource
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("optuna")

import optuna

from servegym.errors import ForeignStudyError, StorageError
from servegym.tuners.search import workers
from servegym.tuners.search.storage import open_storage, open_study
from tests.tuners.search.studies import bowl, opened, points, work


def open_as(folder, identity, name="toy", directions=("maximize",)):
    return open_study(open_storage(None, folder), name, identity, directions, optuna.pruners.NopPruner())


def test_another_identity_is_named_key_by_key(tmp_path):
    open_as(tmp_path, {"panel": "a", "seed": 1, "space": list(range(99))})
    open_as(tmp_path, {"panel": "a", "seed": 1, "space": list(range(99))})
    with pytest.raises(ForeignStudyError) as raised:
        open_as(tmp_path, {"panel": "b", "seed": 1, "space": [], "pruner": "none"})
    error = str(raised.value)
    assert 'panel "a" there, "b" asked for' in error
    assert "other space" in error
    assert 'pruner null there, "none" asked for' in error
    assert "seed" not in error
    assert "\n" not in error
    open_as(tmp_path, {"panel": "b"}, name="another name")


def test_a_study_of_others_is_left_alone(tmp_path):
    optuna.create_study(storage=open_storage(None, tmp_path), study_name="toy").add_trial(
        optuna.trial.create_trial(value=1.0)
    )
    with pytest.raises(ForeignStudyError, match=r"study 'toy' in .*study\.journal was not made by servegym tune"):
        open_as(tmp_path, {}, directions=("minimize",))


def test_a_study_whose_maker_was_killed_before_its_identity_was_kept_is_adopted(tmp_path):
    optuna.create_study(storage=open_storage(None, tmp_path), study_name="toy", direction="maximize")
    assert open_as(tmp_path, {"seed": 1}).user_attrs["servegym"] == {"seed": 1}


def test_other_directions_are_another_study(tmp_path):
    open_as(tmp_path, {})
    with pytest.raises(ForeignStudyError, match="to \\['maximize'\\], not to \\['minimize'\\]"):
        open_as(tmp_path, {}, directions=("minimize",))


def test_a_journal_cut_anywhere_goes_on_to_the_same_study(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "POLL_S", 0.01)
    whole = tmp_path / "whole"
    expected = points(work(opened(whole), bowl, 6))
    content = (whole / "study.journal").read_bytes()
    lines = content.count(b"\n")
    for part in range(1, 24):
        cut = tmp_path / f"cut-{part}"
        cut.mkdir()
        (cut / "study.journal").write_bytes(content[: len(content) * part // 24])
        assert points(work(opened(cut), bowl, 6)) == expected
        assert (cut / "study.journal").read_bytes().count(b"\n") >= lines


def test_of_a_damaged_journal_the_line_is_named(tmp_path):
    work(opened(tmp_path), bowl, 2)
    journal = tmp_path / "study.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:7], lines[7][: len(lines[7]) // 2] + b"\n", *lines[8:]]))
    with pytest.raises(StorageError, match=r"study\.journal is damaged at line 8; `head -n 7` of it"):
        opened(tmp_path)
    journal.write_bytes(b"".join(lines[:7]))
    assert len(work(opened(tmp_path), bowl, 2)) == 2


@pytest.mark.parametrize(
    "content", [b"a text", b"a text\n", b"[1]\n", b'{"op_code": 77, "worker_id": "a"}\n', b"\0\0\0"]
)
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path, content):
    (tmp_path / "study.journal").write_bytes(content)
    with pytest.raises(StorageError, match=r"no journal|are not those of a study"):
        opened(tmp_path)
    assert (tmp_path / "study.journal").read_bytes() == content


def test_damage_while_a_study_runs_is_an_error(tmp_path):
    study = opened(tmp_path)

    def objective(trial):
        with (tmp_path / "study.journal").open("ab") as file:
            file.write(b"nonsense\n")
        return bowl(trial)

    with pytest.raises(StorageError, match="is damaged at line"):
        work(study, objective, 2)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot open .*file/study\.journal: Not a directory"):
        opened(tmp_path / "file")


def test_a_killed_writer_gives_its_lock_back_at_once(tmp_path):
    study = opened(tmp_path)
    script = f"""
import time
from servegym.simulator.compilation.locks import held
with open({str(tmp_path / "study.journal")!r}) as file, held(file):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)
    started = time.monotonic()
    work(study, bowl, 1)
    assert time.monotonic() - started < 5  # Optuna's own lock takes 30 s
    holder.wait()


@pytest.mark.parametrize(("url", "problem"), [
    ("mysql://a:b@c/d", "no storage of the kind 'mysql'; it is postgresql+psycopg://"),
    ("redis://a", "no storage of the kind 'redis'"),
    ("postgresql://a:b@c/d", "name the driver, postgresql+psycopg://"),
    ("study.db", "no storage 'study.db'; it is postgresql+psycopg://"),
    ("postgresql+psycopg://a:b@c:port/d", "no storage 'postgresql+psycopg://a:b@c:port/d'"),
    ("sqlite:///study.db", "no storage of the kind 'sqlite'"),
])  # fmt: skip
def test_a_storage_there_is_none_of(tmp_path, url, problem):
    with pytest.raises(StorageError, match=re.escape(problem)) as raised:
        open_storage(url, tmp_path)
    assert "\n" not in str(raised.value)


def test_a_missing_psycopg_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StorageError, match=r"needs psycopg .*pip install .*\[tune\]'"):
        open_storage("postgresql+psycopg://a:secret@localhost:1/d", tmp_path)


def test_only_storages_that_can_be_shared_are_worked_on(tmp_path):
    with pytest.raises(StorageError, match="a InMemoryStorage cannot be shared by workers"):
        work(optuna.create_study(), bowl, 1)


def test_a_full_disk_ends_the_worker_and_what_is_written_is_kept(tmp_path):
    study = opened(tmp_path / "full")
    work(study, bowl, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "full" / "study.journal").stat().st_size + 700, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*study\.journal: File too large; its contents are kept"):
            work(study, bowl, 5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "full" / "study.journal").read_bytes().endswith(b"\n")
    assert points(work(opened(tmp_path / "full"), bowl, 5)) == points(work(opened(tmp_path / "alone"), bowl, 5))

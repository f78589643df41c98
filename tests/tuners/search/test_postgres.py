"""Studies in a real PostgreSQL: workers are killed, the server goes away and comes back."""

import itertools
import os
import re
import threading
import time

import pytest

pytest.importorskip("optuna")
pytest.importorskip("psycopg")

import optuna
import psycopg
import sqlalchemy

from servegym.errors import StorageError
from servegym.tuners.search import database as database_module
from servegym.tuners.search import workers
from servegym.tuners.search.storage import open_storage
from servegym.tuners.search.workers import worker_of
from tests.tuners.search.postgres import QUOTED, fresh_database, own_server
from tests.tuners.search.studies import WARM_START, Workers, bowl, opened, points, sampler_of, wait_until, work

pytestmark = pytest.mark.slow

TRIALS = 12


@pytest.fixture(scope="module")
def server():
    """One of our own, which tests may stop."""
    with own_server() as server:
        yield server


@pytest.fixture
def database(request):
    given = os.environ.get("SERVEGYM_POSTGRES")
    with fresh_database(given or request.getfixturevalue("server").url) as url:
        yield url


def expected(tmp_path, count=TRIALS, sampler="random"):
    """What the study is in one process, in a journal."""
    return points(work(opened(tmp_path / "alone"), bowl, count, sampler, enqueue=[WARM_START]))


def test_three_workers_of_which_one_is_killed_do_each_trial_once(tmp_path, database):
    """Each as on a machine of its own: only heartbeats tell that one is dead."""
    with Workers(tmp_path, database, TRIALS, seconds=0.3) as workers:
        for _ in range(3):
            workers.start(alone=True)
        workers.wait_for_each()
        killed_at = workers.kill_one_that_runs()
        assert workers.join() == [(0, ""), (0, "")]
        ends = workers.lines("end")
    study = opened(tmp_path, database)
    done = work(study, bowl, TRIALS)
    assert [trial.state.name for trial in study.trials].count("COMPLETE") == TRIALS
    assert sorted(int(index) for index, *_ in ends) == list(range(TRIALS))
    assert len({worker_of(trial) for trial in done}) == 3
    assert [worker_of(trial) for trial in done] == [
        worker for *_, worker, _, _ in sorted(ends, key=lambda it: int(it[0]))
    ]
    assert points(done) == expected(tmp_path)
    failed = [trial for trial in study.trials if trial.state.name == "FAIL"]
    assert [str(trial.user_attrs["slot"]) for trial in failed] == [killed_at]


def test_a_server_that_crashes_and_comes_back_is_waited_for(tmp_path, server):
    with fresh_database(server.url) as url, Workers(tmp_path, url, TRIALS, seconds=0.3) as workers:
        for _ in range(2):
            workers.start()
        workers.wait_for_each()
        for mode in ("immediate", "fast"):
            already = len(workers.lines("end"))
            workers.wait_for("end", already + 2)
            server.stop(mode)
            time.sleep(0.5)
            server.start()
        assert workers.join() == [(0, ""), (0, "")]
        study = opened(tmp_path, url)
        assert points(work(study, bowl, TRIALS)) == expected(tmp_path)
        assert [trial.state.name for trial in study.trials].count("COMPLETE") == TRIALS


def test_a_connection_that_is_lost_at_any_statement_is_made_again(tmp_path, database, monkeypatch):
    """Also where Optuna asks once more in the transaction that has just ended."""
    monkeypatch.setattr(database_module, "LONGEST_WAIT_S", 0.1)
    study = opened(tmp_path, database)
    killer = sqlalchemy.create_engine(database, isolation_level="AUTOCOMMIT")
    seen: list[str] = []

    def lose(connection, cursor, statement, *more):
        """Cut the connection before a statement of a kind that has not come yet."""
        kind = re.sub(r"%\(.*?\)s|\d+", "", statement)
        if kind not in seen:
            seen.append(kind)
            pid = connection.connection.dbapi_connection.info.backend_pid
            with killer.connect() as other:
                other.execute(sqlalchemy.text(f"SELECT pg_terminate_backend({pid}, 5000)"))

    sqlalchemy.event.listen(study._storage._patience.backend.engine, "before_cursor_execute", lose)
    done = work(study, bowl, 3, enqueue=[WARM_START])
    killer.dispose()
    assert points(done) == expected(tmp_path, 3)
    assert len(seen) > 20


@pytest.mark.parametrize("made", [False, True], ids=["before its trial is made", "before its trial runs"])
def test_a_worker_that_loses_the_lock_leaves_the_index_to_the_next_holder(tmp_path, database, monkeypatch, made):
    studies = [opened(tmp_path, database) for _ in range(2)]
    first, second = (
        workers.Worker(study, study._storage, name, 1, sampler_of) for study, name in zip(studies, "ab", strict=True)
    )
    create, taken = first.storage.create_new_trial, []

    def lose_the_lock(*arguments):
        trial_id = create(*arguments) if made else None
        killer = sqlalchemy.create_engine(database, isolation_level="AUTOCOMMIT")
        with killer.connect() as other:
            holder = "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE datname = current_database()"
            other.execute(sqlalchemy.text(f"SELECT pg_terminate_backend(pid, 5000) {holder} AND locktype = 'advisory'"))
        killer.dispose()
        taken.append(second.take()[0])
        return trial_id or create(*arguments)

    monkeypatch.setattr(first.storage, "create_new_trial", lose_the_lock)
    assert first.take() == (None, [])
    second.evaluate(taken[0], bowl)
    assert [worker_of(trial) for trial in work(studies[0], bowl, 1)] == ["b"]
    assert [trial.state.name for trial in studies[0].trials].count("COMPLETE") == 1


def test_a_commit_whose_answer_is_lost_is_not_done_twice(tmp_path, database, monkeypatch):
    """Every other commit of this thread, so that each is tried again."""
    study = opened(tmp_path, database)
    dialect = study._storage._patience.backend.engine.dialect
    commit, lost = dialect.do_commit, itertools.cycle([True, False])

    def lose(connection):
        commit(connection)
        if threading.current_thread() is threading.main_thread() and next(lost):
            connection.dbapi_connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(dialect, "do_commit", lose)
    assert points(work(study, bowl, 3, enqueue=[WARM_START])) == expected(tmp_path, 3)
    assert [trial.state.name for trial in study.trials].count("COMPLETE") == 3


def test_a_server_that_stays_away_ends_the_worker_and_keeps_what_is_finished(tmp_path, server):
    with fresh_database(server.url) as url:
        study = opened(tmp_path, url, patience_s=0.5)
        calls = []

        def objective(trial):
            calls.append(trial.number)
            if len(calls) == 4:
                server.stop()
            return bowl(trial)

        try:
            with pytest.raises(StorageError) as raised:
                work(study, objective, 6, enqueue=[WARM_START])
        finally:
            server.start()
        error = str(raised.value)
        assert re.match(r"postgresql\+psycopg://servegym:\*\*\*@.* has not answered for 0.5 s \(.*\); finished", error)
        assert "\n" not in error
        again = opened(tmp_path, url, grace_s=60)
        started = time.monotonic()
        assert points(work(again, bowl, 6, enqueue=[WARM_START])) == expected(tmp_path, 6)
        assert time.monotonic() - started < 30  # a worker of this machine is known to be dead, without the grace
        assert [trial.state.name for trial in again.trials].count("COMPLETE") == 6


def test_after_an_outage_longer_than_the_grace_living_workers_keep_their_trials(tmp_path, server):
    """The first worker back waits for a grace, as none could send heartbeats; after it a worker without one is dead."""
    with fresh_database(server.url) as url:
        studies = [opened(tmp_path, url, grace_s=3) for _ in range(2)]
        first, second = (
            workers.Worker(study, study._storage, name, 3, sampler_of)
            for study, name in zip(studies, "ab", strict=True)
        )
        trial, _ = first.take()
        assert second.storage.heartbeats_tell
        server.stop("fast")
        time.sleep(4)
        server.start()
        other, _ = second.take()
        assert [workers.index_of(one) for one in (trial, other)] == [0, 1]
        assert not second.storage.heartbeats_tell
        for worker, one in ((first, trial), (second, other)):
            worker.evaluate(one, bowl)
            assert second.storage.get_trial(one._trial_id).state.name == "COMPLETE"

        third, _ = first.take()  # and dies
        time.sleep(4)
        second.storage._patience.trouble_s -= 3  # the grace is over
        again, _ = second.take()
        assert workers.index_of(again) == workers.index_of(third) == 2
        assert second.storage.get_trial(third._trial_id).state.name == "FAIL"


def test_a_heartbeat_that_could_not_be_sent_tells_of_an_outage(tmp_path, database, monkeypatch):
    """The thread that sends them may be the only one to notice, during a long trial."""
    storage = opened(tmp_path, database)._storage

    def away(trial_id):
        raise sqlalchemy.exc.OperationalError("", {}, psycopg.OperationalError("the server is away"))

    monkeypatch.setattr(storage._patience.backend, "record_heartbeat", away)
    assert storage.heartbeats_tell
    storage.record_heartbeat(0)
    assert not storage.heartbeats_tell


def test_killed_and_started_again_is_as_if_nothing_had_happened(tmp_path, database):
    with Workers(tmp_path, database, trials=8, seconds=0.1, sampler="tpe") as workers:
        workers.start()
        workers.wait_for("end", 4)
        workers.kill_one_that_runs()
        workers.start()
        assert workers.join() == [(0, "")]
    done = work(opened(tmp_path, database), bowl, 8)
    assert points(done) == expected(tmp_path, 8, "tpe")


def test_a_worker_that_is_killed_before_its_first_heartbeat_is_noticed(tmp_path, database):
    study = opened(tmp_path, database, grace_s=1)
    assert workers.Worker(study, study._storage, "elsewhere-1-abc", 2, sampler_of).take()[0] is not None
    assert len(work(study, bowl, 2)) == 2
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]


def test_an_idle_holder_of_the_lock_loses_it(tmp_path, server, monkeypatch):
    monkeypatch.setattr(database_module, "HOLDER_LIMIT", "1s")
    first, second = (open_storage(server.url, tmp_path) for _ in range(2))
    started = time.monotonic()
    with first.exclusive(), second.exclusive():
        assert 0.8 < time.monotonic() - started < 10
    with first.exclusive():
        pass


def test_workers_that_begin_at_once_make_one_study(tmp_path, database):
    with Workers(tmp_path, database, trials=3, seconds=0.1) as workers:
        for _ in range(3):
            workers.start()
        assert workers.join() == [(0, "")] * 3
    assert [study.study_name for study in open_storage(database, tmp_path).get_all_studies()] == ["toy"]


def test_a_worker_that_is_stopped_for_longer_than_the_grace_drops_its_result(tmp_path, database):
    """What a suspended machine does: its trial is another's when it wakes up."""
    import signal

    with Workers(tmp_path, database, trials=4, seconds=0.4) as workers:
        sleeper = workers.start(alone=True)
        workers.wait_for("start", 1)
        sleeper.send_signal(signal.SIGSTOP)
        workers.start(alone=True)
        wait_until(lambda: len(workers.lines("end")) == 4, "four trials")
        sleeper.send_signal(signal.SIGCONT)
        assert workers.join() == [(0, ""), (0, "")]
    study = opened(tmp_path, database)
    assert [trial.state.name for trial in study.trials].count("COMPLETE") == 4
    done = work(study, bowl, 4)
    assert {worker_of(trial).split("-")[-2] for trial in done} == {str(workers.processes[1].pid)}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ((QUOTED, "wrong"), 'password authentication failed for user "servegym"'),
        (("/postgres", "/nothing"), 'database "nothing" does not exist'),
        (("servegym:", "nobody:"), 'password authentication failed for user "nobody"'),
        (("127.0.0.1", "nohost.invalid"), "failed to resolve host 'nohost.invalid'"),
        ((":PORT/", ":1/"), "Connection refused"),
    ],
    ids=["password", "database", "user", "host", "port"],
)
def test_what_is_wrong_with_a_database_is_one_line(tmp_path, server, change, problem):
    old, new = (word.replace("PORT", str(server.port)) for word in change)
    assert old in server.url
    with pytest.raises(StorageError, match=re.escape(problem)) as raised:
        open_storage(server.url.replace(old, new), tmp_path)
    assert str(raised.value).startswith("cannot open postgresql+psycopg://")
    assert "\n" not in str(raised.value)
    assert QUOTED not in str(raised.value)


def test_a_server_that_goes_away_while_a_storage_is_opened_is_one_line(tmp_path, server, monkeypatch):
    check = optuna.storages._rdb.storage._VersionManager.check_table_schema_compatibility

    def stopped(manager):
        server.stop("fast")
        check(manager)

    monkeypatch.setattr(optuna.storages._rdb.storage._VersionManager, "check_table_schema_compatibility", stopped)
    try:
        with pytest.raises(StorageError, match=r"^cannot open postgresql.*(refused|terminating)"):
            open_storage(server.url, tmp_path)
    finally:
        server.start()


def test_tables_of_another_optuna_are_an_error(tmp_path, database):
    opened(tmp_path, database)
    engine = sqlalchemy.create_engine(database)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE alembic_version SET version_num = 'v0.9.0.a'"))
    engine.dispose()
    with pytest.raises(StorageError, match=r"cannot use postgresql.*no longer compatible with the table schema"):
        opened(tmp_path, database)

"""Studies in a database, for any number of workers on any machines; calls wait while the database is unavailable."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, _CachedStorage
from optuna.trial import TrialState
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    PendingRollbackError,
)

from servegym.errors import StorageError
from servegym.extras import install_command
from servegym.tuners.search.presence import Presence

Answer = TypeVar("Answer")

BEATS_A_GRACE = 6
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
LOCK_KEY = int.from_bytes(b"servegym", "big")  # key of PostgreSQL's advisory lock: a 64-bit number
HOLDER_LIMIT = "60s"  # a holder that is idle for this long (a stopped process) loses the lock
POSTGRESQL = {  # defaults of libpq's parameters, so that a lost network is noticed
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}
KNOWN = "it is postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE, or none, for a journal in the study's folder"


class Patience:
    """Calls a backend's methods, and repeats a call while the database is unavailable, with growing waits.

    limit_s: time after which a call raises StorageError; 0 after Ctrl-C, for the last calls of a worker that leaves.
    trouble_s: when a call last found the database away, by this process's clock.
    """

    def __init__(self, backend: RDBStorage, name: str, limit_s: float) -> None:
        self.backend = backend
        self.name = name
        self.limit_s = limit_s
        self.trouble_s = -math.inf

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.backend, name)
        return functools.partial(self.call, attribute) if callable(attribute) else attribute

    def call(self, function: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        started_s = time.monotonic()
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return function(*arguments, **named)
            except KeyboardInterrupt:
                self.limit_s = 0.0
                raise
            except Exception as error:
                cause = trouble(error)
                if cause is None:
                    raise
                self.trouble_s = time.monotonic()
                if time.monotonic() - started_s >= self.limit_s:
                    raise StorageError(
                        f"{self.name} has not answered for {self.limit_s:g} s ({reason(cause)}); "
                        "finished trials are kept; the same command continues"
                    ) from None
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


class SharedDatabase(_CachedStorage):
    """A database that several workers share; Optuna's cache over its tables.

    grace_s: a worker without a heartbeat for longer counts as dead. Killed workers of this machine are noticed at once
    (`presence`). patience_s: time that a call waits for an unavailable database.
    """

    def __init__(self, url: str, grace_s: int, patience_s: float) -> None:
        parsed = checked_url(url)
        self.grace_s = grace_s
        self.name = parsed.render_as_string(hide_password=True)
        self.presence = Presence(Path(tempfile.gettempdir()) / f"servegym-workers-{os.getuid()}")
        settings: dict[str, Any] = {
            "connect_args": {name: value for name, value in POSTGRESQL.items() if name not in parsed.query}
        }
        plain = url.replace("{", "{{").replace("}", "}}")  # Optuna fills in a template
        beats_every_s = max(1, grace_s // BEATS_A_GRACE)
        with translated(self.name):
            engine = sqlalchemy.create_engine(parsed, **settings)
            try:
                with locked(engine), warnings.catch_warnings():  # one worker makes the tables
                    warnings.simplefilter("ignore", ExperimentalWarning)
                    backend = RDBStorage(plain, settings, heartbeat_interval=beats_every_s, grace_period=grace_s)
            finally:
                engine.dispose()
        self._patience = Patience(backend, self.name, patience_s)
        super().__init__(self._patience)  # type: ignore[arg-type]  # answers as the backend does

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """As Optuna's, but the same call may be repeated, since a database may fail after the change and before its
        answer; and a trial has a heartbeat before it runs, as one without would never count as stale."""
        if state == TrialState.RUNNING:
            self._patience.record_heartbeat(trial_id)
        try:
            return super().set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            trial = self.get_trial(trial_id)
            if trial.state == state and (values is None or trial.values == list(values)):
                return True
            raise

    def record_heartbeat(self, trial_id: int) -> None:
        """As Optuna's; an unavailable database misses one, since an error would end the thread that sends them."""
        try:
            self._patience.backend.record_heartbeat(trial_id)
        except Exception as error:
            if trouble(error) is None:
                raise
            self._patience.trouble_s = time.monotonic()

    @property
    def heartbeats_tell(self) -> bool:
        """Whether a missing heartbeat tells that a worker is dead. Not for the grace after the database was away:
        no worker could send one, and the first to come back would count all the others as dead.
        """
        return time.monotonic() - self._patience.trouble_s >= self.grace_s

    def is_dead(self, worker: str) -> bool:
        """Return whether a worker of this machine is dead; False for other machines, whose heartbeats stop."""
        return self.presence.alive(worker) is False

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Admit one worker at a time among all that share the database.

        A worker that loses its connection loses the lock without noticing. So the lock may keep things tidy, but
        correctness must not depend on it.
        """
        with contextlib.ExitStack() as stack:
            self._patience.call(lambda: stack.enter_context(locked(self._patience.backend.engine)))
            yield


@contextlib.contextmanager
def locked(engine: sqlalchemy.Engine) -> Iterator[None]:
    """Hold PostgreSQL's advisory lock inside the with block."""
    connection = engine.connect()
    try:
        connection.execute(sqlalchemy.text(f"SET LOCAL idle_in_transaction_session_timeout = '{HOLDER_LIMIT}'"))
        connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(LOCK_KEY)))
        yield
    finally:
        with contextlib.suppress(DBAPIError):  # ends the transaction, and the lock; so does a lost connection
            connection.close()


def checked_url(url: str) -> sqlalchemy.URL:
    """Parse the URL of a database. Raises StorageError for one that no study can be kept in."""
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        raise StorageError(f"no storage {url!r}; {KNOWN}") from None
    if parsed.drivername in ("postgresql", "postgres"):
        raise StorageError(f"storage {parsed.drivername}://...: name the driver, postgresql+psycopg://...")
    if parsed.drivername != "postgresql+psycopg":
        raise StorageError(f"no storage of the kind {parsed.drivername!r}; {KNOWN}")
    return parsed


@contextlib.contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn an error of a database inside the with block into a StorageError of one line."""
    try:
        yield
    except (ImportError, NoSuchModuleError) as error:
        raise StorageError(f"{name} needs psycopg ({error}): {install_command('tune')}") from None
    except (DBAPIError, StorageInternalError) as error:
        raise StorageError(f"cannot open {name}: {reason(error)}") from None
    except RuntimeError as error:  # tables of another Optuna
        raise StorageError(f"cannot use {name}: {str(error).splitlines()[0]}") from None


def trouble(error: BaseException | None) -> DBAPIError | None:
    """Find the driver's error if the database is unavailable, too busy or shutting down; None for any other error."""
    while error is not None:
        if isinstance(error, OperationalError | InterfaceError):
            return error
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return error
        # Optuna may ask again after an error, in a transaction that has ended with the connection.
        error = error.__context__ if isinstance(error, PendingRollbackError) else error.__cause__
    return None


def reason(error: BaseException) -> str:
    """Return the message of a database's error, without SQL and hints."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    cause = cause.orig if isinstance(cause, DBAPIError) and cause.orig else cause
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0].strip()

"""A PostgreSQL server for tests: that of SERVEGYM_POSTGRES, or one of this machine's programs, which refuses root."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "p@ss/ %{x}'"  # every character that an URL or a template could trip over
QUOTED = "p%40ss%2F%20%25%7Bx%7D%27"


def programs() -> Path | None:
    """The folder of PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def missing(why: str) -> None:
    """Skip for want of a server; not in CI, which has one."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


class Server:
    """A server of our own, with a fresh data folder, that can be stopped and started."""

    def __init__(self, folder: Path, bin: Path) -> None:
        self.folder, self.bin, self.data = folder, bin, folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        account: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self.account = account if os.getuid() == 0 else {}
        if self.account:
            shutil.chown(folder, "postgres")
        password = folder / "password"
        password.write_text(PASSWORD)
        words = ["--username=servegym", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync", "--no-locale"]
        self.run("initdb", "--encoding=UTF8", *words)

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://servegym:{QUOTED}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.folder}
        options = " ".join(f"-c {name}={value}" for name, value in {**settings, "fsync": "off"}.items())
        self.run("pg_ctl", "start", "--wait", f"--log={self.folder / 'log'}", f"--options={options}")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server. mode: immediate, as a crash; fast: clients are disconnected first."""
        self.run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def run(self, program: str, *words: str) -> None:
        command = [str(self.bin / program), f"--pgdata={self.data}", *words]
        with (self.folder / "programs.log").open("a") as log:
            subprocess.run(command, check=True, cwd="/", stdout=log, stderr=log, timeout=60, **self.account)


@contextlib.contextmanager
def own_server() -> Iterator[Server]:
    bin = programs()
    if bin is None:
        missing("no PostgreSQL here (Debian: apt-get install postgresql)")
    assert bin is not None
    folder = Path(tempfile.mkdtemp(prefix="servegym-postgres-"))  # pytest's own folders are root's alone
    try:
        server = Server(folder, bin)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # a test may have stopped it
                server.stop()
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def given_or_own() -> Iterator[str]:
    """The URL of the server of SERVEGYM_POSTGRES, or of one of our own."""
    given = os.environ.get("SERVEGYM_POSTGRES")
    if given:
        yield given
    else:
        with own_server() as server:
            yield server.url


@contextlib.contextmanager
def fresh_database(server: str) -> Iterator[str]:
    """The URL of an empty database on a server."""
    import sqlalchemy

    name = f"servegym_{secrets.token_hex(6)}"
    engine = sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.pool.NullPool)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    try:
        yield sqlalchemy.make_url(server).set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"DROP DATABASE {name} WITH (FORCE)"))

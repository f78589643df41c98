"""Optuna Dashboard opens a study where it is kept, as its own command line does."""

import contextlib
import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("optuna_dashboard")

from tests.tuners.search.postgres import fresh_database, given_or_own
from tests.tuners.search.studies import WARM_START, bowl, opened, wait_until, work

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def dashboard(storage, log):
    """`optuna-dashboard STORAGE`: answers requests for its interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).parent / "optuna-dashboard"
    with log.open("w") as file:
        process = subprocess.Popen([program, storage, "--port", str(port)], stdout=file, stderr=file)

    def ask(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as response:
            return response.status, json.loads(response.read())

    def answers():
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            return ask("api/studies")[0] == 200
        return False

    try:
        wait_until(answers, "dashboard")
        yield ask
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["journal", "postgresql"])
def url(request):
    if request.param == "journal":
        yield None
    else:
        pytest.importorskip("psycopg")
        with given_or_own() as server, fresh_database(server) as database:
            yield database


def test_it_opens_a_study(tmp_path, url):
    done = work(opened(tmp_path, url), bowl, 3, enqueue=[WARM_START])
    with dashboard(url or str(tmp_path / "study.journal"), tmp_path / "log") as ask:
        (study,) = ask("api/studies")[1]["study_summaries"]
        assert study["study_name"] == "toy"
        status, document = ask(f"api/studies/{study['study_id']}?after=0")
    assert status == 200
    assert [trial["values"] for trial in document["trials"]] == [trial.values for trial in done]

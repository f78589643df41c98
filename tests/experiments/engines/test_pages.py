"""The commands of the engines' pages as they are written, one after the other, with the time of each; needs vLLM.

They run in a folder with a copy of docs/ and links to what else a checkout has, and print into printed.txt there. A
server goes on in the background until another takes its port, or its page ends.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.pages import ENGINE_PAGES, ROOT, shell_commands_of

pytest.importorskip("vllm", reason="needs vLLM: run by experiments/engines/engines_test.sh")

from experiments.engines.servers import ENVIRONMENT, HOST, answers, stop

LIMIT_S = 1800.0  # of a command, the start of a server included
SERVES = re.compile(r"vllm serve|servegym proxy")
PORT = re.compile(r"--port (\d+)")
LINKED = ("experiments", "tests", "pyproject.toml")
RECORDED = "traces/mooncake_fast25_conversation.parquet"  # under SERVEGYM_DATA

# What shows that a command does not run here, and why not.
NOT_RUN = {
    r"\bvllm serve MODEL\b": "it needs a GPU; study_to_engine.md starts the same on the emulated device",
    r"--backends-dns": "it needs a name that resolves to engines; tests/adapters/routing/test_operation.py has one",
    r"^export .*=\.\.\.": "its reader fills in secrets",
    r"^kill .*\bPID\b": "its reader fills in the number; tests/adapters/routing/test_operation.py sends that signal",
    r"-m pytest\b|engines\.fuzz\b": "engines_test.sh runs it by itself",
    r"engines\.parity_counts\b": "it needs an environment of each version, and most of an hour",
    r"\bconversation_trace\.jsonl\b": f"it needs {RECORDED} under SERVEGYM_DATA",
}
# What a page's reader has beside it.
FIRST = {
    "proxy": [
        f"servegym export --router {router} --device h100-llama3-8b --slo proserve --trace azure-conv "
        f"--target servegym --out {name}.json"
        for name, router in (("policy", "gorouting"), ("better", "min-load"))
    ]
}
HAS = {"proxy": {"SERVEGYM_ADMIN_KEY": "of-this-test"}}


def folder_of_a_reader(folder: Path) -> set[str]:
    """Fill it; returns the rules of NOT_RUN that hold in it."""
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / ".engines").mkdir()
    (folder / ".engines" / "vllm").symlink_to(sys.prefix)
    recorded = Path(os.environ.get("SERVEGYM_DATA", "")) / RECORDED
    if not recorded.is_file():
        return set(NOT_RUN)
    pd.read_parquet(recorded).to_json(folder / "conversation_trace.jsonl", orient="records", lines=True)
    return {rule for rule in NOT_RUN if "conversation" not in rule}


class Reader:
    """One at a shell: what has been exported holds for later commands."""

    def __init__(self, folder: Path, has: dict[str, str]):
        self.folder, self.printed, self.before = folder, folder / "printed.txt", 0
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SERVEGYM_", "VLLM_"))}
        caches = {name: os.environ[name] for name in ("SERVEGYM_CACHE",) if name in os.environ}
        path = f"{sys.prefix}/bin:{os.environ['PATH']}"
        self.variables = {**kept, **caches, **ENVIRONMENT, "PATH": path, **has}
        self.servers: dict[int, subprocess.Popen] = {}

    def gives(self, command: str) -> None:
        """Raises CalledProcessError or TimeoutExpired."""
        with self.printed.open("a") as printed:
            self.before = printed.tell()
            printed.write(f"$ {command}\n")
        if command.startswith("export "):
            words = command.partition("#")[0].split()[1:]
            self.variables |= dict(word.split("=", 1) for word in words)
        elif SERVES.search(command):
            self._starts(command)
        else:
            with self.printed.open("ab") as printed:
                subprocess.run(
                    ["bash", "-c", command], cwd=self.folder, env=self.variables, stdin=subprocess.DEVNULL,
                    stdout=printed, stderr=subprocess.STDOUT, check=True, timeout=LIMIT_S,
                )  # fmt: skip

    def _starts(self, command: str) -> None:
        """In the background, until it answers."""
        found = PORT.search(command)
        port = int(found[1]) if found else 8000
        if port in self.servers:
            stop(self.servers.pop(port))
        assert not answers(f"http://{HOST}:{port}"), f"something else has port {port}"
        with self.printed.open("ab") as printed:
            server = self.servers[port] = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"], cwd=self.folder, env=self.variables, stdin=subprocess.DEVNULL,
                stdout=printed, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        until_s = time.monotonic() + LIMIT_S
        while not answers(f"http://{HOST}:{port}"):
            if server.poll() is not None or time.monotonic() > until_s:
                raise subprocess.CalledProcessError(server.poll() or 1, command)
            time.sleep(0.25)

    def said(self) -> str:
        """The end of what has been printed since the last command."""
        return "\n".join(self.printed.read_bytes()[self.before :].decode(errors="replace").splitlines()[-20:])


@contextlib.contextmanager
def reader(folder: Path, has: dict[str, str]) -> Iterator[Reader]:
    one = Reader(folder, has)
    try:
        yield one
    finally:
        for server in one.servers.values():
            stop(server)


@pytest.mark.parametrize("page", ENGINE_PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules, failed = folder_of_a_reader(tmp_path), []
    with reader(tmp_path, HAS.get(page.stem, {})) as one, capsys.disabled():
        for command in FIRST.get(page.stem, []):
            one.gives(command)
        print(f"\n{page.name}")
        for command in shell_commands_of(page):
            why = next((NOT_RUN[rule] for rule in NOT_RUN if rule in rules and re.search(rule, command)), None)
            if why is not None:
                print(f"  not run    {command}\n             {why}", flush=True)
                continue
            begun_s = time.monotonic()
            try:
                one.gives(command)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                failed.append(f"{command}\n{error}\n{one.said()}")
            print(f"{time.monotonic() - begun_s:9.1f} s{'  FAILED' * bool(failed and failed[-1].startswith(command))}  "
                  f"{command}", flush=True)  # fmt: skip
    assert not failed, "\n\n".join(failed)

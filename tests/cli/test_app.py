"""The command as a whole: help, version, how quickly it answers, and Ctrl-C."""

import inspect
import itertools
import json
import subprocess
import sys

import pytest
from typer.models import OptionInfo

from servegym import __version__
from servegym.cli.app import app, kernels_digest, run, with_only
from servegym.simulator.runs.simulation import Simulation

HEAVY = {"numba", "pandas", "matplotlib", "scipy", "pyarrow", "torch"}  # NumPy comes with Gymnasium


def test_version(servegym_process):
    done = servegym_process("--version")
    assert (done.status, done.stdout.strip()) == (0, f"servegym {__version__} (kernels {kernels_digest()})")


def test_at_the_end_of_a_command_no_garbage_is_looked_for():
    code = (
        "import atexit, gc, sys; from servegym.__main__ import main; sys.argv[1:] = ['--version']\n"
        "atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects())))\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, left = map(int, done.stdout.splitlines()[-1].split())
    assert frozen > 10_000 > 100 > left


def test_the_digest_changes_with_a_kernel_and_not_with_anything_else(tmp_path, monkeypatch):
    for name in ("simulator/runs/loop.py", "latency_models/forms/linear.py", "cli/app.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("x = 1\n")
    monkeypatch.setattr(sys.modules["servegym.cli.app"], "PACKAGE", tmp_path)
    first = kernels_digest()
    (tmp_path / "cli/app.py").write_text("x = 2\n")
    assert kernels_digest() == first
    (tmp_path / "latency_models/forms/linear.py").write_text("x = 2\n")
    assert kernels_digest() != first


def test_no_option_takes_its_name_from_its_metavar():
    """typer 0.27 makes `--PORT` of an argument `port` with the metavar PORT whose option is not spelled out."""
    groups = [group.typer_instance.registered_commands for group in app.registered_groups]
    for command in itertools.chain(app.registered_commands, *groups):
        for parameter in inspect.signature(command.callback, eval_str=True).parameters.values():
            for info in getattr(parameter.annotation, "__metadata__", (parameter.default,)):
                if isinstance(info, OptionInfo) and info.metavar and info.metavar.lower() == parameter.name:
                    spelled_out = [info.default, *info.param_decls]  # typer.Option takes the first name for a default
                    assert f"--{parameter.name}" in spelled_out, command.callback.__name__


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(servegym, arguments):
    done = servegym(*arguments)
    assert done.status == 0
    for command in ("simulate", "compare", "train", "evaluate", "trace", "bench"):
        assert command in done.stdout


@pytest.mark.parametrize("command", [["simulate"], ["compare"], ["train"], ["evaluate"], ["trace", "inspect"]])
def test_help_of_a_command_has_examples(servegym, command):
    done = servegym(*command, "--help")
    assert done.status == 0
    assert "Examples" in done.stdout
    assert f"servegym {' '.join(command)}" in done.stdout


def test_trace_alone_shows_its_commands(servegym):
    done = servegym("trace")
    assert (done.status, done.stderr) == (0, "")
    assert "inspect" in done.stdout


def test_help_breaks_lines_where_the_terminal_ends(servegym):
    """Not where the source does: a paragraph's lines but the last are nearly as wide as the terminal."""
    text = servegym("goodput", "--help").stdout.partition("meet a target.")[2].partition("Options")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()][:-1]  # without the border of the options
    assert len(lines) > 2 and min(map(len, lines[:-1])) > max(map(len, lines)) - 12


def test_help_loads_nothing_heavy():
    code = "import json, sys; from servegym.cli.app import app; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in json.loads(done.stdout)} & HEAVY


def test_an_interrupt_ends_with_one_line(servegym, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Simulation, "run", interrupted)
    done = servegym("simulate", "--rate", "5", "--requests", "10")
    assert done.status == 130
    assert done.stderr.startswith("servegym: interrupted: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_error_of_the_program_itself_keeps_its_traceback(servegym, monkeypatch):
    """Only what a user can put right becomes one line: a defect must be seen."""

    def defect(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(Simulation, "run", defect)
    monkeypatch.setattr(sys, "argv", ["servegym", "simulate", "--rate", "5", "--requests", "10"])
    with pytest.raises(ZeroDivisionError):
        run()


def test_only_the_command_that_is_named_is_prepared():
    everything = {*app.registered_commands, *app.registered_groups}
    for name in ("simulate", "trace"):
        alone = with_only(name)
        (prepared,) = {*alone.registered_commands, *alone.registered_groups}
        assert prepared.name == name
    assert with_only("simulat") is app and with_only("--help") is app
    assert {*app.registered_commands, *app.registered_groups} == everything

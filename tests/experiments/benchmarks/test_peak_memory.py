"""The peak memory of a process is its own, whatever the one that started it has had."""

import subprocess
import sys

from experiments.benchmarks import peak_memory

MEBIBYTE = 2**20
CHILD = "from experiments.benchmarks.peak_memory import peak_bytes; held = b'x' * {held}; print(peak_bytes())"
PARENT = "import subprocess, sys; held = b'x' * {held}; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"


def peak_of_child(held_by_parent: int, held: int) -> int:
    command = [sys.executable, "-c", PARENT.format(held=held_by_parent), CHILD.format(held=held)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def test_a_child_of_a_large_process_is_not_large():
    small = peak_of_child(0, 0)
    assert small < 100 * MEBIBYTE
    assert abs(peak_of_child(500 * MEBIBYTE, 0) - small) < 10 * MEBIBYTE


def test_what_a_child_holds_is_seen():
    growth = peak_of_child(0, 200 * MEBIBYTE) - peak_of_child(0, 0)
    assert 190 * MEBIBYTE < growth < 215 * MEBIBYTE


def test_without_proc_it_is_that_of_the_operating_system(monkeypatch, tmp_path):
    there = peak_memory.peak_bytes()
    monkeypatch.setattr(peak_memory, "STATUS", tmp_path / "status")
    assert peak_memory.peak_bytes() >= 0.9 * there

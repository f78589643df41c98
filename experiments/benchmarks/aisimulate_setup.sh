#!/bin/sh
# Make the environment of the comparison with NVIDIA AISimulate: aisimulate_setup.sh DIR, then servegym bench --aisimulate
# DIR. Its final versions are placeholders that want another index; this pre-release is a wheel for Python 3.11 to 3.13
# on Linux, x86-64. Its replay, which is compiled, needs none of its dependencies.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps aisimulate==0.13.0.dev202610270000000085
"$1/bin/python" -c "import aisimulate._runtime"

#!/bin/sh
# Make the environment of the comparison with Vidur: vidur_setup.sh DIR, then servegym bench --vidur DIR.
# The release is that of Vidur's authors (Georgia Tech and Microsoft), with a compiled part.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check vidur==0.0.26
"$1/bin/python" -c "import vidur.simulator"

#!/bin/sh
# Make the environment of the comparison with NVIDIA Dynamo: dynamo_setup.sh DIR, then servegym bench --dynamo
# DIR/bin/python. What is needed is named here: one of ai-dynamo's own dependencies (aisimulate) is a placeholder that
# wants another index, and the offline replay, which is compiled into ai-dynamo-runtime, needs none of them.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1 typing_extensions==4.16.0
"$1/bin/python" -c "import dynamo.replay"

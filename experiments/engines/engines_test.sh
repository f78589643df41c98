#!/usr/bin/env bash
# The tests that need vLLM or SGLang, in environments of their own: installed if absent (1 to 4 minutes each), else as
# they are.
#
#     experiments/engines/engines_test.sh                     # the newest tested version
#     SGLANG=0 PAGES=0 experiments/engines/engines_test.sh    # without SGLang's, and without the pages
#     ENGINES="official:0.26.0 official:0.28.0 cpu:0.32.0 official:0.33.0" experiments/engines/engines_test.sh
#
# ENGINES_FOLDER (default .engines) holds the environments; PYTHON makes them. Arguments go to pytest. After the tests a
# fuzz of FUZZ_STEPS steps (default 10,000, at most 8 minutes; 0: none) runs on each. Then the commands of the engines'
# pages run as they are written, with their times, on the last official version (PAGES=0: not; PAGES=proxy: of that
# page). A version that fails fails the script, after the others have run. A version that the plug-in was not tested with
# (TESTED in adapters/vllm/versions.py) runs with SERVEGYM_ANY_VLLM=1, as the plug-in refuses it otherwise.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
engines="${ENGINES:-official:0.33.0}"
folder="$(mkdir -p "${ENGINES_FOLDER:-.engines}" && cd "${ENGINES_FOLDER:-.engines}" && pwd)"
untested="${SERVEGYM_ANY_VLLM:-0}"
failed=0

for engine in $engines; do
    build="${engine%%:*}" version="${engine##*:}"
    environment="$folder/vllm-$version-$build"
    echo "== vLLM $version, $build build"
    if ! "${PYTHON:-python3}" experiments/engines/install_vllm.py "$environment" --build "$build" --version "$version"; then
        failed=1
        continue
    fi
    export SERVEGYM_ANY_VLLM="$untested"
    if ! SERVEGYM_ANY_VLLM=0 "$environment/bin/python" \
        -c "from servegym.adapters.vllm.versions import check_version; check_version('$version')" 2>/dev/null; then
        echo "== with SERVEGYM_ANY_VLLM=1: the plug-in was not tested with $version"
        export SERVEGYM_ANY_VLLM=1
    fi
    if ! OMP_NUM_THREADS=1 "$environment/bin/python" -m pytest -p no:cacheprovider \
        tests/adapters/emulation tests/adapters/vllm tests/adapters/profiling "$@"; then
        failed=1
    fi
    if [ "${FUZZ_STEPS:-10000}" -gt 0 ] && ! OMP_NUM_THREADS=1 VLLM_TARGET_DEVICE=cpu "$environment/bin/python" \
        -m experiments.engines.fuzz --steps "${FUZZ_STEPS:-10000}"; then
        failed=1
    fi
done
official="$(tr ' ' '\n' <<<"$engines" | grep '^official:' | tail -n 1)"
if [ "${PAGES:-1}" != 0 ] && [ -n "$official" ]; then
    echo "== The pages' commands"
    if ! OMP_NUM_THREADS=1 "$folder/vllm-${official##*:}-official/bin/python" -m pytest -p no:cacheprovider \
        tests/experiments/engines/test_pages.py -k "${PAGES:-}"; then
        failed=1
    fi
fi
if [ "${SGLANG:-1}" != 0 ]; then
    echo "== SGLang"
    if ! "${PYTHON:-python3}" experiments/engines/install_sglang.py "$folder/sglang" ||
        ! OMP_NUM_THREADS=1 "$folder/sglang/bin/python" -m pytest -p no:cacheprovider tests/adapters/sglang "$@"; then
        failed=1
    fi
fi
exit "$failed"

"""Profiles: what ships loads, and every way to get one wrong is named."""

import json
import subprocess
import sys

import numpy as np
import pytest

from servegym.latency_models.profile import FOLDER, load_profile, parse_profile, profile_names
from servegym.latency_models.sampling import BatchRange, random_batches
from servegym.simulator.errors import ProfileError

NAMES = ("a100-llama3-8b", "h100-llama3-8b")


@pytest.fixture
def document():
    return json.loads((FOLDER / "a100-llama3-8b.json").read_text())


def test_names():
    assert profile_names() == list(NAMES)


@pytest.mark.nojit
@pytest.mark.parametrize("name", NAMES)
def test_shipped_profiles(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.device.form == "piecewise"
    assert profile.estimator.form == "linear"
    assert profile.kv.block_tokens == 16
    assert profile.kv.bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert profile.kv.total_blocks == profile.kv.usable_bytes // (16 * profile.kv.bytes_per_token)
    # 80 GB x 0.9 less 16 GB of weights leave a little over 400 thousand tokens.
    assert 400_000 < profile.kv.total_blocks * 16 < 460_000
    assert profile.valid["sequences"] == (1, 512)
    assert "composition errors" in profile.error["statement"]
    batches = random_batches(30, seed=0)
    device_s, estimate_s = profile.device.evaluate(batches), profile.estimator.evaluate(batches)
    assert (device_s > profile.cpu_overhead_s).all()
    assert np.abs(estimate_s / device_s - 1).mean() < 0.1


def test_the_h100_is_the_faster():
    batches = random_batches(60, seed=1)
    a100, h100 = (load_profile(name).device.evaluate(batches) for name in NAMES)
    assert (a100 > h100).all()


def test_ranges_in_which_batches_were_drawn_are_in_the_profile():
    for name in NAMES:
        assert load_profile(name).valid["cached_tokens_in_batch"][1] == BatchRange().cached_tokens_in_batch


def test_cpu_overhead_is_part_of_the_device(document):
    batches = random_batches(3, seed=0)
    with_overhead = parse_profile(document, "x").device.evaluate(batches)
    without = parse_profile(document | {"cpu_overhead_s": 0.0}, "x").device.evaluate(batches)
    assert with_overhead - without == pytest.approx(document["cpu_overhead_s"], rel=1e-9)


def test_a_file_of_ones_own(document, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document | {"name": "mine"}))
    assert load_profile(path).name == "mine"
    assert load_profile(str(path)).name == "mine"


def test_unknown_names_and_absent_files(tmp_path):
    with pytest.raises(ProfileError, match=r"unknown profile 'a100'; known: a100-llama3-8b, h100-llama3-8b"):
        load_profile("a100")
    with pytest.raises(ProfileError, match=r"nowhere\.json cannot be read: No such file"):
        load_profile(tmp_path / "nowhere.json")
    with pytest.raises(ProfileError, match=r"cannot be read"):
        load_profile(tmp_path)


def test_a_truncated_file(document, tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(document)[:700])
    with pytest.raises(
        ProfileError, match=r"cut\.json is not JSON at line 1 column \d+: .*cut off"
    ) as caught:
        load_profile(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ProfileError, match=r"binary\.json is not text in UTF-8"):
        load_profile(path)


def change(document, path, value):
    *parents, last = path.split(".")
    for key in parents:
        document = document[key]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("cpu_overhead_s", -1.0, r"mine: cpu_overhead_s: -1.0 is less than the minimum of 0 \("),
        ("cpu_overhead_s", float("nan"), r"mine: cpu_overhead_s is nan; it must be a finite number"),
        ("device.coefficients.a_p", -1e-9, r"mine: device: a_p is -1e-09; it must be"),
        ("device.coefficients.a_p", float("nan"), r"mine: device.coefficients.a_p is nan"),
        ("device.coefficients.base_s", [0.1, float("inf")], r"device.coefficients.base_s\[1\] is inf"),
        ("device.coefficients.knots_tokens", [2.0, 1.0], r"2 knots_tokens and 32 base_s"),
        ("device.form", "cubic", r"unknown latency form 'cubic'"),
        ("device.speed", 1, r"mine: device: .*'speed' was unexpected"),
        ("estimator.coefficients", {}, r"mine: estimator: coefficient missing a_p"),
        ("estimator.coefficients", [], r"mine: estimator.coefficients: \[\] is not of type 'object'"),
        ("kv.total_blocks", 0, r"mine: kv.total_blocks: 0 is less than the minimum of 1"),
        ("kv.total_blocks", 10**9, r"mine: kv: total_blocks is 1000000000; usable_bytes hold 27925 at most"),
        ("kv.block_tokens", "16", r"mine: kv.block_tokens: '16' is not of type 'integer'"),
        ("valid.sequences", [1], r"mine: valid.sequences: \[1\] is too short"),
        ("name", "Not A Name", r"mine: name: 'Not A Name' does not match"),
    ],
)  # fmt: skip
def test_wrong_values(document, path, value, message):
    change(document, path, value)
    with pytest.raises(ProfileError, match=message) as caught:
        parse_profile(document, "mine")
    assert "\n" not in str(caught.value)


def test_knots_that_do_not_increase(document):
    knots = document["device"]["coefficients"]["knots_tokens"]
    knots[3] = knots[2]
    with pytest.raises(
        ProfileError, match=r"mine: device: knots_tokens\[3\] is 16.0 after 16.0; they must increase"
    ):
        parse_profile(document, "mine")


def test_missing_parts_and_other_documents(document):
    with pytest.raises(ProfileError, match=r"mine: \[\] is not of type 'object'"):
        parse_profile([], "mine")
    del document["kv"]
    with pytest.raises(ProfileError, match=r"mine: 'kv' is a required property"):
        parse_profile(document, "mine")


def test_an_estimator_needs_the_time_of_a_request(document):
    document["estimator"] = document["device"]
    with pytest.raises(
        ProfileError, match=r"mine: estimator: form 'piecewise' has no time of a request alone"
    ):
        parse_profile(document, "mine")


def test_loading_imports_neither_pandas_nor_the_solver():
    code = (
        "import sys; from servegym.latency_models.profile import load_profile;"
        "load_profile('a100-llama3-8b');"
        "print([name for name in ('pandas', 'scipy.optimize', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

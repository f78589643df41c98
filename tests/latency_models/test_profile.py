"""Profiles: what ships loads, and every way to get one wrong is named."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from servegym.errors import ProfileError
from servegym.latency_models.building.specifications import GIB
from servegym.latency_models.changed import with_kv_groups
from servegym.latency_models.estimators import range_of
from servegym.latency_models.profile import FOLDER, load_profile, parse_profile, profile_document, profile_names
from servegym.latency_models.sampling import BatchRange, random_batches
from servegym.simulator.features.front_end import FrontEnd
from servegym.simulator.memory.kv_groups import KvCacheGroup

# Tokens the KV cache holds, in thousands: memory x 0.9 less weights and 2.5 GiB, over the bytes of a token.
CACHE = {
    "a100-llama3-70b-tp4": (320 * 0.9 * GIB - 141.1e9 - 10 * GIB) / 327680,
    "a100-llama3-70b-tp8": (640 * 0.9 * GIB - 141.1e9 - 20 * GIB) / 327680,
    "a100-llama3-8b": (80 * 0.9 * GIB - 16.06e9 - 2.5 * GIB) / 131072,
    "a100-llama3-8b-tp2": (160 * 0.9 * GIB - 16.06e9 - 5 * GIB) / 131072,
    "a100-llama3-8b-tp4": (320 * 0.9 * GIB - 16.06e9 - 10 * GIB) / 131072,
    "a100-qwen1.5-4b": (80 * 0.9 * GIB - 7.90e9 - 2.5 * GIB) / 409600,
    "a100-qwen1.5-7b": (80 * 0.9 * GIB - 15.44e9 - 2.5 * GIB) / 524288,
    "a100-qwen2.5-14b-tp2": (160 * 0.9 * GIB - 29.54e9 - 5 * GIB) / 196608,
    "a100-qwen3-30b-a3b": (80 * 0.9 * GIB - 61.06e9 - 2.5 * GIB) / 98304,
    "a5000-qwen1.5-7b": (24 * 0.9 * GIB - 15.44e9 - 2.5 * GIB) / 524288,
    "a6000-llama3.1-8b": (48 * 0.9 * GIB - 16.06e9 - 2.5 * GIB) / 131072,
    "ascend910b-qwen2-7b": (64 * 0.9 * GIB - 15.23e9 - 2.5 * GIB) / 57344,
    "ascend910b-qwen3-32b-tp4": (256 * 0.9 * GIB - 65.52e9 - 10 * GIB) / 262144,
    "ascend910b-qwen3-8b": (64 * 0.9 * GIB - 16.38e9 - 2.5 * GIB) / 147456,
    "ascend910b-qwen3-8b-eager": (64 * 0.9 * GIB - 16.38e9 - 2.5 * GIB) / 147456,
    "h100-llama3-8b": (80 * 0.9 * GIB - 16.06e9 - 2.5 * GIB) / 131072,
    "h200-llama3-8b": (141 * 0.9 * GIB - 16.06e9 - 2.5 * GIB) / 131072,
}


@pytest.fixture
def document():
    return json.loads((FOLDER / "a100-llama3-8b.json").read_text())


def test_names():
    assert profile_names() == list(CACHE)


@pytest.mark.nojit
@pytest.mark.parametrize("name", CACHE)
def test_what_ships_has_the_shape_that_is_checked_of_other_profiles(name):
    assert parse_profile(profile_document(name), name).name == name


@pytest.mark.nojit
@pytest.mark.parametrize("name", CACHE)
def test_shipped_profiles(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.kv.block_tokens == 16
    assert profile.kv.total_blocks == profile.kv.usable_bytes // (16 * profile.kv.bytes_per_token)
    assert profile.kv.total_blocks * 16 == pytest.approx(CACHE[name], rel=0.005)
    limits = range_of(profile)
    assert limits.cached_tokens_in_batch <= profile.kv.total_blocks * 16
    batches = random_batches(30, 0, limits)
    device_s, estimate_s = profile.device.evaluate(batches), profile.estimator.evaluate(batches)
    assert (device_s > profile.cpu_overhead_s).all()
    claimed = profile.error["estimator_vs_device"]["mape_percent"]
    assert 100 * np.abs(estimate_s / device_s - 1).mean() <= claimed + 5


def device_times(*names):
    batches = random_batches(60, 1, BatchRange(2048, 8, 200, 8192, 200_000))
    return [load_profile(name).device.evaluate(batches) for name in names]


@pytest.mark.parametrize(("slower", "faster"), [
    ("a6000-llama3.1-8b", "a100-llama3-8b"), ("a100-llama3-8b", "h100-llama3-8b"),
    ("a100-llama3-8b", "a100-llama3-8b-tp2"), ("a100-llama3-8b-tp2", "a100-llama3-8b-tp4"),
    ("a100-llama3-70b-tp4", "a100-llama3-70b-tp8"), ("a100-llama3-70b-tp4", "a100-llama3-8b-tp4"),
    ("a100-qwen2.5-14b-tp2", "a100-llama3-8b-tp2"),
])  # fmt: skip
def test_the_faster_of_two_devices(slower, faster):
    slower_s, faster_s = device_times(slower, faster)
    assert (slower_s > faster_s).all()


def test_an_h200_reads_faster_and_computes_as_an_h100():
    h100_s, h200_s = device_times("h100-llama3-8b", "h200-llama3-8b")
    assert 0.6 < (h200_s / h100_s).min() < 0.85
    assert (h200_s / h100_s).max() < 1.15


def test_eager_mode_waits_for_the_host_in_short_batches():
    eager, graph = (load_profile(f"ascend910b-qwen3-8b{mode}") for mode in ("-eager", ""))
    assert eager.device.coefficients_by_name["t_c"] == pytest.approx(0.0457, abs=1e-4)
    batch = random_batches(1, 0, BatchRange(1, 1, 1, 16, 16))  # one decode of 16 cached tokens
    assert eager.device.evaluate(batch)[0] == pytest.approx(0.046, abs=0.001)
    assert graph.device.evaluate(batch)[0] == pytest.approx(0.0257, abs=0.0005)


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


def test_a_front_end_has_a_source_and_an_error(document):
    part = {"request_s": 0.0093, "back_s": 0.0018, "source": "measured", "error": "means, 10 %"}
    assert parse_profile(document | {"front_end": part}, "x").front_end == FrontEnd(0.0093, back_s=0.0018)
    for key in ("source", "error"):
        without = {name: value for name, value in part.items() if name != key}
        with pytest.raises(ProfileError, match=f"mine: front_end: '{key}' is a required property"):
            parse_profile(document | {"front_end": without}, "mine")
    for key, value, message in (
        ("back_s", -1.0, "front_end.back_s: -1.0 is less than the minimum of 0"),
        ("back_s", float("inf"), "front_end.back_s is inf; it should be a finite number"),
        ("back_s", 1e20, r"front end: back_s is 1e\+20; it should be a time"),
        ("speed", 1, "front_end: .*'speed' was unexpected"),
    ):
        with pytest.raises(ProfileError, match=f"mine: {message}"):
            parse_profile(document | {"front_end": part | {key: value}}, "mine")


def test_unknown_names_and_absent_files(tmp_path):
    with pytest.raises(ProfileError, match=r"unknown profile 'a100' .*there are: a100-llama3-70b-tp4, .*, h200-"):
        load_profile("a100")
    with pytest.raises(ProfileError, match=r"nowhere\.json cannot be read: No such file"):
        load_profile(tmp_path / "nowhere.json")
    with pytest.raises(ProfileError, match=r"cannot be read"):
        load_profile(tmp_path)


def test_a_truncated_file(document, tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(document)[:700])
    with pytest.raises(ProfileError, match=r"cut\.json is not JSON: line 1 column \d+: .*cut off") as caught:
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


@pytest.mark.parametrize(("path", "value", "message"), [
    ("cpu_overhead_s", -1.0, r"mine: cpu_overhead_s: -1.0 is less than the minimum of 0 \("),
    ("cpu_overhead_s", float("nan"), r"mine: cpu_overhead_s is nan; it should be a finite number"),
    ("basis", "a guess", r"mine: basis: 'a guess' is not one of"),
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
    ("operators.names", ["qkv"], r"mine: operators: 1 names and 5 rows of coefficients"),
    ("operators.names", ["qkv"] * 5, r"mine: operators.names: .* has non-unique elements"),
    ("operators.coefficients", [[1.0, 0.0, 0.0]], r"mine: operators.coefficients.0: .* is too short"),
    ("operators.coefficients", [[0.0] * 4] * 5, r"mine: operators: qkv takes no time; one of its coefficients"),
    ("operators.layers", 0, r"mine: operators.layers: 0 is less than the minimum of 1"),
    ("name", "Not A Name", r"mine: name: 'Not A Name' does not match"),
])  # fmt: skip
def test_wrong_values(document, path, value, message):
    change(document, path, value)
    with pytest.raises(ProfileError, match=message) as caught:
        parse_profile(document, "mine")
    assert "\n" not in str(caught.value)


def test_knots_that_do_not_increase(document):
    knots = document["device"]["coefficients"]["knots_tokens"]
    knots[3] = knots[2]
    with pytest.raises(ProfileError, match=r"mine: device: knots_tokens\[3\] is 16.0 after 16.0; they must increase"):
        parse_profile(document, "mine")


def test_missing_parts_and_other_documents(document):
    with pytest.raises(ProfileError, match=r"mine: \[\] is not of type 'object'"):
        parse_profile([], "mine")
    del document["kv"]
    with pytest.raises(ProfileError, match=r"mine: 'kv' is a required property"):
        parse_profile(document, "mine")


def test_an_estimator_needs_the_time_of_a_request(document):
    document["estimator"] = document["device"]
    with pytest.raises(ProfileError, match=r"mine: estimator: form 'piecewise' has no time of a request alone"):
        parse_profile(document, "mine")


def test_loading_imports_neither_pandas_nor_the_solver_nor_what_checks_shapes():
    code = (
        "import sys; from servegym.latency_models.profile import load_profile;"
        "load_profile('a100-llama3-8b');"
        "print([name for name in ('pandas', 'scipy.optimize', 'pyarrow', 'jsonschema') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_estimator():
    """As it is fitted for a profile that ships, to the digits of the file; of the same device."""
    shipped, fitted = load_profile("h200-llama3-8b"), load_profile("h200-llama3-8b:estimator=table-shares")
    assert fitted.estimator.coefficients == pytest.approx(shipped.estimator.coefficients, rel=1e-6)
    assert fitted.error["estimator_vs_device"] == shipped.error["estimator_vs_device"]
    assert fitted.name == "h200-llama3-8b:estimator=table-shares"
    assert np.array_equal(fitted.device.coefficients, shipped.device.coefficients) and fitted.kv == shipped.kv


def test_another_cpu_overhead():
    """The device and what policies believe of it take so much longer; it goes together with another estimator."""
    name = "h200-llama3-8b:cpu_overhead_ms=6.9"
    shipped, slower = load_profile("h200-llama3-8b"), load_profile(name)
    assert (slower.name, slower.kv) == (name, shipped.kv) and slower.cpu_overhead_s == pytest.approx(0.0069)
    batches = random_batches(20, 0)
    for model in ("device", "estimator"):
        longer_s = getattr(slower, model).evaluate(batches) - getattr(shipped, model).evaluate(batches)
        assert longer_s == pytest.approx(0.006)
    both = load_profile(f"{name}:estimator=linear")
    assert (both.name, both.estimator.form) == (f"{name}:estimator=linear", "linear")
    assert np.array_equal(both.device.coefficients, slower.device.coefficients)


def test_tokens_that_count_alike():
    shipped = load_profile("h200-llama3-8b")
    groups = (KvCacheGroup(), KvCacheGroup(window=128))
    windows = dataclasses.replace(shipped, kv=dataclasses.replace(shipped.kv, groups=groups))
    alike = with_kv_groups(windows, "mean")
    assert windows.deployment().kv_groups == groups and alike.deployment().kv_groups == ()
    assert (alike.name, alike.kv) == ("h200-llama3-8b:kv_groups=mean", shipped.kv)


@pytest.mark.parametrize(("name", "words"), [
    ("h200-llama3-8b:cpu_overhead_ms=-1", "cpu_overhead_ms=-1: it should be a number"),
    ("h200-llama3-8b:cpu_overhead_ms=nan", "0 or more"),
    ("h200-llama3-8b:cpu_overhead_ms=fast", "0 or more"),
    ("h200-llama3-8b:kv_groups=mean", "h200-llama3-8b has no KV cache groups; leave it out"),
    ("h200-llama3-8b:kv_groups=off", "kv_groups=off: it should be mean"),
    ("h200-llama3-8b:cpu_overhead=1", "unknown profile"),
    ("h200-llama3-8b:estimator=piecewise", "'piecewise' cannot be an estimator; these can: linear"),
    ("h200-llama3-8b:estimator=guess", "'guess'"),
    ("h200-llama3-8b:estimator=polynomial", "no time of a decode"),
    ("nowhere.json:estimator=table", "nowhere.json"),
    ("h200:estimator=table", "unknown profile 'h200'"),
])  # fmt: skip
def test_a_change_that_cannot_be(name, words):
    with pytest.raises(ProfileError, match=words) as error:
        load_profile(name)
    assert "\n" not in str(error.value)

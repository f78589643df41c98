"""What is recorded of xLLM's source: complete, of known types, and what an export may say."""

import importlib.resources
import json
import re
from pathlib import Path

import pytest

from servegym.adapters.xllm.flags import load_version, version_numbers
from servegym.errors import XllmError

RECORD = json.loads(importlib.resources.files("servegym.adapters.xllm").joinpath("flags.json").read_text("utf-8"))
KINDS = {"bool": bool, "int32": int, "double": float, "string": str}


def test_versions_are_found_however_they_are_written():
    assert version_numbers() == ["0.10", "0.11"]
    assert load_version("v0.10.2") == load_version("0.10")
    with pytest.raises(XllmError, match=r"xLLM 0.9: its flags are not recorded; those of 0.10, 0.11 are"):
        load_version("0.9")


@pytest.mark.parametrize("number", version_numbers())
def test_every_record_says_where_it_is_from(number):
    part = RECORD["versions"][number]
    sources = [*part["flags"], *(source for field in part["request_fields"] for source in field["sources"])]
    for source in [*sources, part["slide_batching"]]:
        assert re.fullmatch(r"[0-9a-f]{40}", source["commit"]) and source["repo"] and source["path"]
    names = [flag["name"] for flag in part["flags"]]
    assert len(set(names)) == len(names)
    for flag in part["flags"]:
        assert type(flag["default"]) is KINDS[flag["type"]], flag["name"]


@pytest.mark.parametrize("number", version_numbers())
def test_what_turns_slide_batching_on_are_flags_of_the_version(number):
    version = load_version(number)
    assert version.check_flags(version.slide_batching) == version.slide_batching
    assert {"aggressive_coeff", "starve_threshold", "enable_latency_aware_schedule"} <= set(version.flags)
    assert {"ttft_slo_ms", "tpot_slo_ms", "ttlt_slo_ms", "ttft_priority_weight", "tpot_priority_weight",
            "priority_weight"} <= set(version.request_fields)  # fmt: skip


def test_the_scheduler_is_chosen_by_another_flag_in_each_version():
    old, new = map(load_version, ("0.10", "0.11"))
    with pytest.raises(XllmError, match=r"xLLM 0.11 has no flag 'use_mix_scheduler' \(see flags.json\)"):
        new.check_flags(old.slide_batching)
    with pytest.raises(XllmError, match=r"xLLM 0\.10 has no flag 'enable_mix_batch'"):
        old.check_flags(new.slide_batching)


@pytest.mark.parametrize("flags, problem", [
    ({"aggressive_coeff": "1.0"}, "aggressive_coeff is '1.0'; xLLM takes double"),
    ({"aggressive_coeff": float("nan")}, "aggressive_coeff is nan; xLLM takes double"),
    ({"aggressive_coeff": True}, "aggressive_coeff is True; xLLM takes double"),
    ({"enable_chunked_prefill": 1}, "enable_chunked_prefill is 1; xLLM takes bool"),
    ({"max_tokens_per_batch": 2**31}, "max_tokens_per_batch is 2147483648; xLLM takes int32"),
    ({"priority_strategy": None}, "priority_strategy is None; xLLM takes string"),
])  # fmt: skip
def test_values_of_other_types_are_refused(flags, problem):
    with pytest.raises(XllmError, match=problem):
        load_version("0.11").check_flags(flags)


def test_fields_are_checked_too():
    with pytest.raises(XllmError, match=r"a request to xLLM 0\.11 has no field 'slo_ms'"):
        load_version("0.11").check_fields({"slo_ms": 5})
    with pytest.raises(XllmError, match=r"priority_weight is 1\.5; xLLM takes int32"):
        load_version("0.11").check_fields({"priority_weight": 1.5})


def test_the_page_has_the_numbers_of_the_record():
    page = (Path(__file__).parents[3] / "docs/xllm.md").read_text("utf-8")
    counts = {number: len(RECORD["versions"][number]["flags"]) for number in version_numbers()}
    assert f"{counts['0.10']} flags of 0.10 and {counts['0.11']} of 0.11" in page

"""The hint at --drop-empty stands where the option helps: at rows with 0 tokens, or none."""

import pytest

from servegym.errors import WorkloadError
from servegym.traces.loading import load_trace
from servegym.traces.reading import Reading

HINT = "--drop-empty leaves such rows out"


@pytest.mark.parametrize(("cell", "helps"), [("0", True), ("", True), ("10.5", False), ("-3", False), ("abc", False)])
def test_the_hint_is_true(tmp_path, cell, helps):
    path = tmp_path / "mine.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,10,3\n1,{cell},3\n")
    with pytest.raises(WorkloadError, match=r"row 2: prompt_tokens .*a whole number of tokens") as told:
        load_trace(str(path))
    assert (HINT in str(told.value)) == helps
    if helps:
        assert len(load_trace(str(path), reading=Reading(drop_empty=True))) == 1
    else:
        with pytest.raises(WorkloadError, match="row 2"):
            load_trace(str(path), reading=Reading(drop_empty=True))

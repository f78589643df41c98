"""Episodes of a split: parts of a file, with all that the trace says."""

import json

import numpy as np
import pytest

from servegym.errors import SpecError
from servegym.scenarios.spec import ServingSpec


@pytest.fixture
def trace(tmp_path):
    """Fifty prompts of two blocks, the first one of three, the second of all."""
    path = tmp_path / "m.jsonl"
    rows = [
        {"timestamp": 100 * i, "input_length": 1026 + 3 * i + i % 3, "output_length": 8, "hash_ids": [i % 3, 7, 9]}
        for i in range(50)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_keeps_the_prefixes_of_its_requests(trace, split):
    spec = ServingSpec().with_overrides({"trace": trace, "split": split, "requests": 6, "prefix_caching": "on"})
    workload = spec(np.random.default_rng(3)).workload
    assert workload.prefixes.chunk_tokens == 512
    first = workload.table["prompt_tokens"] % 3  # of the three
    chunks = workload.prefixes.chunks.reshape(6, -1)[:, 0]
    np.testing.assert_array_equal(chunks[:, None] == chunks, first[:, None] == first)


def test_prefix_stores_need_prefixes_in_a_split_too():
    spec = ServingSpec().with_overrides({"split": "train", "requests": 6, "prefix_store_tokens": 10_000})
    with pytest.raises(SpecError, match="has no prefix blocks"):
        spec(np.random.default_rng(3))


@pytest.mark.parametrize("cv", [1e200, 1e-200])
def test_gaps_that_cannot_be_drawn(cv):
    with pytest.raises(SpecError, match=r"it should be a number from 0\.001 to 100"):
        ServingSpec().replaced(cv=cv)

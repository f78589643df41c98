"""Whatever a file holds, it is an artifact or an ArtifactError of one line, and never anything else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servegym.baselines.artifact import Artifact, ArtifactError, load_artifact, save_artifact
from servegym.baselines.learned.controller import controlled
from servegym.baselines.learned.network import Network, Shape
from servegym.baselines.learned.routing import routed
from servegym.baselines.observations.engine import engine_layout
from servegym.baselines.observations.routing import routing_layout
from servegym.baselines.registry import router, scheduler

pytest.importorskip("safetensors.numpy")

RUNS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SHIPPED = Path(__file__).parents[3] / "baselines/learned/policies/cma-engine-batching.json"
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([2**80, -1, 0, 1]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder with the weights of its artifacts, and their documents: one of each version."""
    folder = tmp_path_factory.mktemp("artifacts")
    rng = np.random.default_rng(3)
    base = controlled(
        scheduler("slide-batching"), ("gamma", "eta"), Network.random(Shape.dense_on(engine_layout(), 2), rng)
    )
    learned = routed(router("gorouting"), Network.random(Shape.shared_by(routing_layout(3)), rng))
    workload = {"ttft_slo_s": 1.0, "weight_of_priority": {"1": 2.0}, "loads": [1.4]}
    estimator = {"profile": "mine", "form": "linear", "coefficients": [1.0], "fit": {}}
    artifact = Artifact({"scheduler": base, "router": learned}, estimator, workload, {"trained_on": {}})
    (folder / "cma-engine-batching.safetensors").write_bytes(SHIPPED.with_suffix(".safetensors").read_bytes())
    return folder, [
        json.loads(save_artifact(artifact, folder / "new.json").read_text()),
        json.loads(SHIPPED.read_text()),
    ]


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every part of a document but its provenance, which may be anything."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [path for key, item in items if key != "provenance" for path in places(item, (*here, key))]
    return [here, *below]


def loads_or_is_refused(path: Path) -> None:
    try:
        assert load_artifact(path).policies
    except ArtifactError as error:
        message = str(error)
        assert message.startswith(str(path)) and "\n" not in message and len(message) < len(str(path)) + 1000


@pytest.mark.slow
@RUNS
@given(data=st.data())
def test_mutated_documents(documents, data):
    folder, originals = documents
    document = copy.deepcopy(data.draw(st.sampled_from(originals)))
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(places(document)[1:] or [("schema",)]))
        part = document
        for key in parents:
            part = part[key]
        what = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "remove":
            del part[last]
        elif what == "add" and isinstance(part, dict):
            part[data.draw(st.text(max_size=6))] = data.draw(ANYTHING)
        else:
            part[last] = data.draw(ANYTHING)
    (folder / "mutated.json").write_text(json.dumps(document))
    loads_or_is_refused(folder / "mutated.json")


@pytest.mark.slow
@RUNS
@given(data=st.data())
def test_mutated_bytes(documents, data):
    """Of the document and of the weights."""
    folder, originals = documents
    path = folder / "bytes.json"
    original = json.dumps(originals[0]).encode()
    weights = folder / "new.scheduler.safetensors"
    kept = weights.read_bytes()
    texts = {path: original, weights: kept}
    for file in texts:
        text = bytearray(texts[file])
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, min(len(text), 400) - 1))
            text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        file.write_bytes(bytes(text[: data.draw(st.sampled_from([len(text), len(text) // 2]))]))
    try:
        loads_or_is_refused(path)
    finally:
        weights.write_bytes(kept)


@RUNS
@given(document=ANYTHING)
def test_anything_that_is_json(tmp_path, document):
    path = tmp_path / "any.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArtifactError):
        load_artifact(path)

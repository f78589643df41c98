"""Operators with torch: every batch can be run, and what takes longer is longer."""

import json

import numpy as np
import pytest

from servegym.adapters.profiling.design import Batch, Prefill, Space, design
from servegym.adapters.profiling.torch_operators import read_shape
from servegym.errors import ProfilingError
from servegym.latency_models.building.shapes import ModelShape

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = ModelShape(2, 64, 4, 2, 16, 128, 100)
SPACE = Space(64, 6, 256, 4096)


def meter_of(shape=SHAPE, space=SPACE, **settings):
    from servegym.adapters.profiling.torch_operators import TorchMeter

    return TorchMeter(shape, space, **settings)


@pytest.fixture(scope="module")
def meter():
    return meter_of(dtype="float32")


def test_every_designed_batch_runs(meter):
    meter.warm_up()
    for batch in design(SPACE, 30):
        measured = meter.measure(batch, 2)
        assert (measured.batch == batch.sums()).all()
        assert (measured.seconds > 0).all()
        assert set(measured.parts) == {
            f"{name}_s" for name in ("norm", "qkv", "attention", "o", "gate_up", "activation", "down", "head")
        }
        assert sum(measured.parts.values()) == pytest.approx(np.median(measured.seconds), rel=0.9)


def test_attention_is_that_of_the_whole_prompt(meter):
    """A chunk after what is cached attends as the end of the whole prompt does."""
    from servegym.adapters.profiling.torch_operators import _Run

    torch.manual_seed(0)
    queries = torch.randn(12, SHAPE.heads * SHAPE.head_dim)
    kept = [(torch.randn(1, 2, 12, 16), torch.randn(1, 2, 12, 16))]
    whole = _Run(meter, Batch((Prefill(12),)))._attention(queries, kept)
    chunk = _Run(meter, Batch((Prefill(5, 7),)))._attention(queries[7:], kept)
    torch.testing.assert_close(chunk, whole[7:])
    last = _Run(meter, Batch(decodes=(11,)))._attention(queries[11:], kept)
    torch.testing.assert_close(last, whole[11:])


def test_a_model_with_more_layers_takes_longer():
    few = meter_of(ModelShape(2, 256, 4, 2, 64, 512, 100), dtype="float32")
    many = meter_of(ModelShape(16, 256, 4, 2, 64, 512, 100), dtype="float32")
    batch = Batch((Prefill(64),))
    times = [each.measure(batch, 9).seconds.min() for each in (few, many)]
    assert times[1] > 3 * times[0]


def test_facts_say_what_was_measured(meter):
    facts = meter.facts()
    assert facts["dtype"] == "torch.float32"
    assert facts["shape"]["hidden"] == 64
    assert facts["clock"] == "time.perf_counter"


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"device": "nowhere"}, "nowhere"), ({"dtype": "int8"}, "dtype"), ({"dtype": "Tensor"}, "dtype")],
)
def test_devices_and_numbers_that_there_are_not(settings, word):
    with pytest.raises(ProfilingError, match=word) as error:
        meter_of(**settings)
    assert "\n" not in str(error.value)


CONFIG = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


def test_shapes_as_hugging_face_has_them(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"head_dim": None, "architectures": ["LlamaForCausalLM"]}))
    assert read_shape(path) == ModelShape(2, 64, 4, 4, 16, 128, 100)
    path.write_text(json.dumps(CONFIG | {"num_key_value_heads": 2, "head_dim": 32}))
    assert read_shape(path).qkv_width == 8 * 32


@pytest.mark.parametrize(("text", "word"), [
    ("{", "no JSON"),
    ("[1]", "no JSON object"),
    (json.dumps({"hidden_size": 64}), "num_hidden_layers is None"),
    (json.dumps(CONFIG | {"vocab_size": 0}), "vocab_size"),
    (json.dumps(CONFIG | {"hidden_size": "many"}), "hidden_size is 'many'"),
    (json.dumps(CONFIG | {"num_experts": 8, "num_experts_per_tok": 2}), "has experts"),
    (json.dumps(CONFIG | {"sliding_window": 8}), "sliding windows"),
    (json.dumps(CONFIG | {"num_key_value_heads": 3}), "evenly"),
])  # fmt: skip
def test_shapes_that_are_none(tmp_path, text, word):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ProfilingError, match=word):
        read_shape(path)
    with pytest.raises(ProfilingError, match="cannot be read"):
        read_shape(tmp_path / "nothing.json")

"""Models of states alone: the states, groups and blocks that vLLM makes of their configs are those of a profile."""

import importlib
import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from experiments.engines.vllm_driving import surrounded
from servegym.latency_models.model_configs.kv_groups import grouped, kept_by
from servegym.latency_models.model_configs.reading import read

ARCHITECTURES = Path(__file__).parents[3] / "latency_models/architectures"
MODELS = {
    "mamba-2.8b-hf": ("mamba", "MambaForCausalLM"),
    "falcon-mamba-7b": ("mamba", "MambaForCausalLM"),
    "mamba-codestral-7b-v0.1": ("mamba2", "Mamba2ForCausalLM"),
}
AVAILABLE_BYTES = 40 * 2**30


@surrounded()
def vllm_config(document: dict[str, Any], folder: Path, caching: bool) -> Any:
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, VllmConfig

    (folder / "config.json").write_text(json.dumps(document | {"torch_dtype": "bfloat16"}))
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, max_model_len=8192)
    cache = CacheConfig(enable_prefix_caching=caching)
    config = VllmConfig(model_config=model, cache_config=cache, device_config=DeviceConfig("cpu"))
    cache.mamba_ssm_cache_dtype = "auto"  # as on a GPU; on a CPU vLLM keeps states in 32 bits
    return config


@pytest.mark.parametrize("caching", [False, True], ids=["", "caching"])
@pytest.mark.parametrize("name", MODELS)
def test_states_groups_and_blocks_are_vllms(name: str, caching: bool, tmp_path: Path) -> None:
    document = json.loads((ARCHITECTURES / f"{name}.json").read_text(encoding="utf-8"))
    config = vllm_config(document["config"], tmp_path, caching)
    from vllm.v1.kv_cache_interface import MambaSpec

    place = "kv_cache_planning" if find_spec("vllm.v1.core.kv_cache_planning") else "kv_cache_utils"  # 0.33; before
    get_kv_cache_groups = importlib.import_module(f"vllm.v1.core.{place}").get_kv_cache_groups
    module, cls = MODELS[name]
    model_class = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), cls)
    spec = MambaSpec(
        shapes=model_class.get_mamba_state_shape_from_config(config),
        dtypes=model_class.get_mamba_state_dtype_from_config(config),
        block_size=config.cache_config.mamba_block_size,
        mamba_cache_mode=config.cache_config.mamba_cache_mode,
    )
    count = document["config"]["num_hidden_layers"]
    (group,) = get_kv_cache_groups(config, {f"layer{place}": spec for place in range(count)})
    ours = grouped(kept_by(read(document["config"], name), 1), AVAILABLE_BYTES)
    (mine,) = ours.groups
    assert (len(group.layer_names), spec.page_size_bytes) == (mine.layers, ours.page_bytes)
    assert count * spec.page_size_bytes == document["state_bytes"]
    assert ours.blocks == AVAILABLE_BYTES // (count * spec.page_size_bytes) - 1  # without the null block
    assert not config.model_config.is_prefix_caching_supported  # vLLM's default is off
    assert spec.block_size == (mine.block_tokens if caching else 8192)


@pytest.mark.parametrize(("groups", "devices"), [(1, 2), (1, 8), (8, 2), (8, 8)])
def test_devices_keep_as_much_as_vllms(groups: int, devices: int) -> None:
    """A group is copied to each device if there are more devices."""
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator

    sizes = {"num_heads": 128, "head_dim": 64, "state_size": 128, "conv_kernel": 4, "n_groups": groups}
    convolved, state = MambaStateShapeCalculator.mamba2_state_shape(devices, 8192, **sizes)
    model = {"model_type": "mamba2", "num_hidden_layers": 1, "hidden_size": 4096, "vocab_size": 100}
    mixer = read(model | sizes, "m").layers[0].mixer
    assert mixer.bytes(devices) == 2 * (math.prod(convolved) + math.prod(state))

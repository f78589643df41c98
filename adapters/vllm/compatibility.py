"""What of vLLM's configuration the plug-in was not made for."""

from __future__ import annotations

import os
from typing import Any

from servegym.adapters.vllm.versions import OVERRIDE
from servegym.errors import VllmError


def check_compatibility(config: Any) -> None:
    """Raise VllmError for a configuration (VllmConfig) under which the mirror would not be true."""
    found = [
        name
        for name, there in (
            ("a KV connector", config.kv_transfer_config is not None),
            ("pipeline parallelism", config.parallel_config.pipeline_parallel_size > 1),
            ("an encoder-decoder model", config.model_config.is_encoder_decoder),
            ("a pooling model", config.model_config.runner_type == "pooling"),
        )
        if there
    ]
    if found and os.environ.get(OVERRIDE) != "1":
        raise VllmError(
            f"the plug-in was not made for {', '.join(found)}; serve without, or set {OVERRIDE}=1 to go on untested"
        )

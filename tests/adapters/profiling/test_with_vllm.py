"""vLLM's engine core measured in process, on an emulated device; needs an engine's environment (docs/engines.md)."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

pytest.importorskip("vllm", reason="needs vLLM: run by experiments/engines/engines_test.sh")

from experiments.engines.tiny_model import make_model
from servegym.latency_models.profile import load_profile

PROFILE = "a100-llama3-8b"
# In a process of its own: vLLM reads its environment when it is imported.
CODE = """
import sys
from pathlib import Path
from servegym.adapters.profiling.design import design
from servegym.adapters.profiling.measuring import Plan, measure
from servegym.adapters.profiling.vllm_engine import Options, VllmMeter

meter = VllmMeter(Options(sys.argv[1], 256, 8, 2048, eager=True, more={
    "distributed_executor_backend": "servegym.adapters.emulation.Executor", "block_size": 16}))
measure(meter, Plan(15, 2), Path(sys.argv[2]))
meter.close()
"""


def test_designed_batches_are_formed_and_take_what_the_device_takes(tmp_path):
    from servegym.adapters.profiling.design import Space, design, mean_sums
    from servegym.adapters.profiling.vllm_engine import fewer

    model = make_model(tmp_path / "model")
    environment = os.environ | {"SERVEGYM_DEVICE": PROFILE, "SERVEGYM_TIME": "real", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(model), str(tmp_path / "out")],
        env=environment | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = pd.read_csv(tmp_path / "out/batches.csv")
    facts = json.loads((tmp_path / "out/profile.json").read_text())
    assert facts["space"]["batch_tokens"] == 256
    assert facts["facts"]["kv_blocks"] == facts["space"]["kv_tokens"] // facts["facts"]["kv_block_tokens"]
    batches = design(Space(**facts["space"]), 15)
    assert rows["scene"].tolist() == list(range(15))
    for row, batch in zip(rows.to_dict("records"), batches, strict=True):
        wanted = mean_sums([batch, fewer(batch, 1)])[0]  # of the two repeats
        for name in ("prefill_requests", "prefill_tokens", "prefill_tokens_cached", "decode_requests"):
            assert row[name] == wanted[name]
        if wanted["decode_requests"]:  # shorter prompts make up for the steps of the prefills, if not for the repeats
            grown = (row["decode_cached_tokens"] - wanted["decode_cached_tokens"]) / wanted["decode_requests"]
            assert -8 <= grown <= 32
    device_s = load_profile(PROFILE).device.evaluate(rows)
    assert (rows["fastest_s"] > 0.99 * device_s).all()
    assert ((rows["fastest_s"] - device_s) < 0.1).all()  # vLLM's own time, on a busy machine

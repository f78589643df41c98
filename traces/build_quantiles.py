"""Makes the quantile tables of the embedded generator anew, from the traces under $SERVEGYM_DATA/traces.

    python -m servegym.traces.build_quantiles

The same traces give the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from servegym.simulator.errors import WorkloadError
from servegym.traces.readers import read_trace
from servegym.traces.trace import Trace

COMMAND = "python -m servegym.traces.build_quantiles"
BANDS = 10
LEVELS = np.round(np.r_[np.arange(0, 199) * 0.005, 0.995, 0.9975, 0.999, 0.9995, 1.0], 6)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a family's lengths come from. context_tokens: the most of prompt and output its source kept."""

    family: str
    file: str
    origin: str
    commit: str
    licence: str
    context_tokens: int | None = None


SOURCES = (
    Source(
        "azure-code", "azure_llm_2023_code.parquet",
        "Azure/AzurePublicDataset data/AzureLLMInferenceTrace_code.csv", "b469a113cedc", "CC-BY-4.0",
    ),
    Source(
        "azure-conv", "azure_llm_2023_conv.parquet",
        "Azure/AzurePublicDataset data/AzureLLMInferenceTrace_conv.csv", "b469a113cedc", "CC-BY-4.0",
    ),
    Source(
        "mooncake-conversation", "mooncake_fast25_conversation.parquet",
        "kvcache-ai/Mooncake FAST25-release/traces/conversation_trace.jsonl", "3b5a59413395", "Apache-2.0",
    ),
    Source(
        "sharegpt", "sharegpt_8k_llama2_lengths.parquet",
        "microsoft/sarathi-serve data/processed_traces/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        "72339db5b120", "Apache-2.0", context_tokens=8192,
    ),
)  # fmt: skip


def table(source: Source, trace: Trace) -> dict[str, Any]:
    """The table of a trace: quantiles of prompts, and of outputs in each tenth of the prompts by length."""
    by_prompt = np.argsort(trace.prompt_tokens, kind="stable")
    return {
        "family": source.family,
        "source": source.origin,
        "commit": source.commit,
        "licence": source.licence,
        "changes": "reduced to quantiles of prompt tokens, and of output tokens by band of prompt length",
        "rows": len(trace),
        "sha256": trace.provenance["sha256"],
        "made_by": COMMAND,
        "context_tokens": source.context_tokens,
        "levels": LEVELS.tolist(),
        "prompt_tokens": _quantiles(trace.prompt_tokens),
        "output_tokens_by_prompt_band": [
            _quantiles(trace.output_tokens[band]) for band in np.array_split(by_prompt, BANDS)
        ],
    }


def _quantiles(tokens: np.ndarray) -> list[int]:
    """Lengths that occur, at LEVELS."""
    return [int(length) for length in np.quantile(tokens, LEVELS, method="inverted_cdf")]


def text(content: dict[str, Any]) -> str:
    """JSON with a line for each entry, and one for each band."""
    bands = content["output_tokens_by_prompt_band"]
    rest = {key: value for key, value in content.items() if value is not bands}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items()]
    rows = ",\n".join(f"    {json.dumps(band)}" for band in bands)
    lines.append(f'  "output_tokens_by_prompt_band": [\n{rows}\n  ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def build(data: Path, out: Path) -> list[Path]:
    """Write the table of every source found under `data`/traces into `out`; returns the files written."""
    written = []
    for source in SOURCES:
        path = out / f"{source.family}.json"
        path.write_text(text(table(source, read_trace(data / "traces" / source.file))), encoding="utf-8")
        written.append(path)
    return written


def main() -> int:
    data = os.environ.get("SERVEGYM_DATA")
    if not data:
        print("SERVEGYM_DATA names no folder: set it to the one that holds traces/", file=sys.stderr)
        return 2
    try:
        for path in build(Path(data), Path(__file__).parent / "quantiles"):
            print(path.name)
    except WorkloadError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Rebuild the quantile tables of the embedded generators from the traces under $SERVEGYM_DATA/traces.

    python -m experiments.quantiles.build_quantiles

The same traces give the same bytes.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from servegym.errors import WorkloadError
from servegym.traces import servegen
from servegym.traces.quantiles import CLIENTS
from servegym.traces.readers import read_trace
from servegym.traces.trace import Trace

COMMAND = "python -m experiments.quantiles.build_quantiles"
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

# ServeGen's clients: file names a service, its origin the folder of its tables.
CLIENT_SOURCES = (
    Source(
        "servegen-m-small", "servegen_m_small_client_rates.parquet",
        "alibaba/ServeGen data/language/m-small", "f891d1189eb3", "Apache-2.0",
    ),
    Source(
        "servegen-deepseek-r1", "servegen_deepseek_r1_client_rates.parquet",
        "alibaba/ServeGen data/reason/deepseek-r1", "f891d1189eb3", "Apache-2.0",
    ),
)  # fmt: skip
CLIENT_LEVELS = np.array([0, 0.01, 0.025, *np.arange(5, 100, 5) / 100, 0.975, 0.99, 0.995, 0.999, 1])


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


def client_table(source: Source, service: servegen.Tables) -> dict[str, Any]:
    """The table of a service: of each client its share of all requests, and quantiles of its lengths over all time."""
    rate_per_s, starts_s = service.rates["rate_per_s"], service.rates["window_start_s"]
    clients = []
    for client in np.unique(service.rates["client"]).tolist():
        here = service.rates["client"] == client
        prompt, output = (
            _mixed_quantiles([service.lengths_of(client, field, at_s) for at_s in starts_s[here]], rate_per_s[here])
            for field in servegen.FIELDS
        )
        share = round(float(rate_per_s[here].sum() / rate_per_s.sum()), 9)
        clients.append({"client": client, "share": share, "prompt_tokens": prompt, "output_tokens": output})
    return {
        "family": source.family,
        "source": source.origin,
        "commit": source.commit,
        "licence": source.licence,
        "changes": "reduced to shares of requests and quantiles of lengths by client; clients without lengths left out",
        "left_out": round(service.left_out, 9),
        "sha256": [service.provenance["sha256"], service.provenance["lengths_sha256"]],
        "made_by": COMMAND,
        "levels": CLIENT_LEVELS.tolist(),
        "clients": clients,
    }


def _mixed_quantiles(tables: list[servegen.Lengths], weights: np.ndarray) -> list[int]:
    """Lengths that occur, at CLIENT_LEVELS, of tables mixed by weight (those in force for several windows once)."""
    by_table: dict[int, float] = {}
    for table_in_force, weight in zip(tables, weights, strict=True):
        by_table[id(table_in_force)] = by_table.get(id(table_in_force), 0.0) + float(weight)
    distinct = {id(one): one for one in tables}
    tokens = np.concatenate([distinct[key].tokens for key in by_table])
    shares = np.concatenate([np.diff(distinct[key].ends, prepend=0) * weight for key, weight in by_table.items()])
    order = np.argsort(tokens[shares > 0], kind="stable")
    tokens, shares = tokens[shares > 0][order], shares[shares > 0][order]
    at = np.searchsorted(np.cumsum(shares), CLIENT_LEVELS * shares.sum() * (1 - 1e-12))
    return tokens[np.minimum(at, len(tokens) - 1)].tolist()


def text(content: dict[str, Any]) -> str:
    """JSON with a line for each entry, and one for each item of its last, a list."""
    *entries, (last, items) = content.items()
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries]
    rows = ",\n".join(f"    {json.dumps(item)}" for item in items)
    lines.append(f"  {json.dumps(last)}: [\n{rows}\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def build(data: Path, out: Path) -> list[Path]:
    """Write the table of every source found under `data`/traces into `out`; returns the files written."""
    written = []
    for source in SOURCES:
        path = out / f"{source.family}.json"
        path.write_text(text(table(source, read_trace(data / "traces" / source.file))), encoding="utf-8")
        written.append(path)
    for source in CLIENT_SOURCES:
        path = out / f"{source.family}{CLIENTS}"
        service = servegen.read_tables(data / "traces" / source.file)
        path.write_text(text(client_table(source, service)), encoding="utf-8")
        written.append(path)
    return written


def main() -> int:
    data = os.environ.get("SERVEGYM_DATA")
    if not data:
        print("SERVEGYM_DATA names no folder: set it to the one that holds traces/", file=sys.stderr)
        return 2
    try:
        for path in build(Path(data), Path(__file__).parents[2] / "traces" / "quantiles"):
            print(path.name)
    except WorkloadError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Rebuild the tables of the session generators from the traces under $SERVEGYM_DATA/measured.

    python -m experiments.quantiles.build_sessions

The same traces give the same bytes.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from servegym.errors import WorkloadError
from servegym.traces import files
from servegym.traces.quantiles import SESSIONS

COMMAND = "python -m experiments.quantiles.build_sessions"
LEVELS = np.round(np.r_[np.linspace(0, 0.99, 100), 0.995, 1.0], 6)
RANKS = np.round(np.geomspace(1e-4, 1, 81), 8)  # shares of the documents, the most asked for first


def quantiles(values: Any) -> list[float]:
    """At the LEVELS."""
    return [float(f"{value:.5g}") for value in np.quantile(np.asarray(values, "f8"), LEVELS)]


def agentic(path: Path) -> dict[str, Any]:
    """Agents and their sub-agents: turns, first prompts, what is new in later ones, answers, pauses.

    New tokens: prompt minus the last prompt and answer; below 0 if part of the context was dropped.
    """
    table = pd.read_parquet(path).sort_values(["session", "turn"], kind="stable")
    content: dict[str, Any] = {}
    for name, rows in (("agent", table[table.agent_depth == 0]), ("sub_agent", table[table.agent_depth > 0])):
        of_session = rows.groupby("session")
        context = of_session["prompt_tokens"].shift() + of_session["output_tokens"].shift()
        new = (rows["prompt_tokens"] - context).dropna()
        content[name] = {
            "turns": quantiles(of_session.size()),
            "first_prompt_tokens": quantiles(of_session["prompt_tokens"].first()),
            "new_tokens": quantiles(new),
            "output_tokens": quantiles(rows["output_tokens"]),
            "think_s": quantiles(rows["think_s"].dropna()),
        }
    agents, subs = table[table.agent_depth == 0], table[table.agent_depth > 0]
    content["sub_agents_per_turn"] = round(subs["session"].nunique() / len(agents), 5)
    content["block_tokens"] = 64  # of those conversations that have hashes
    content["context_tokens"] = int((table["prompt_tokens"] + table["output_tokens"]).max())
    return content


def retrieving(path: Path) -> dict[str, Any]:
    """A service that answers from documents: turns, pauses, questions, documents and how often each is asked for."""
    table = pd.read_parquet(path).sort_values(["session", "turn"], kind="stable")
    of_session = table.groupby("session")
    documents: list[int] = []
    document_tokens: list[int] = []
    questions, stamps, common = [], [], []
    for row in table.itertuples(index=False):
        tokens, ids, system = list(row.part_tokens), list(row.part_ids), row.n_sys
        documents += ids[system : system + row.n_passages]
        document_tokens += tokens[system : system + row.n_passages]
        common.append(sum(tokens[: system - 1]))
        stamps.append(tokens[system - 1])
        questions.append(sum(tokens[-row.n_user :]))
    counts = np.sort(np.unique(np.array(documents), return_counts=True)[1])[::-1]
    reached = np.cumsum(counts) / counts.sum()
    places = np.maximum(1, np.round(RANKS * len(counts)).astype("i8")) - 1
    pause_s = of_session["arrival_s"].diff().dropna()
    return {
        "turns": quantiles(of_session.size()),
        "new_tokens": quantiles(questions),
        "output_tokens": quantiles(table["output_tokens"]),
        "think_s": quantiles(pause_s),
        "documents_a_turn": quantiles(table["n_passages"]),
        "document_tokens": quantiles(document_tokens),
        "documents": len(counts),
        "rank_shares": RANKS.tolist(),
        "draws_up_to_rank": [float(f"{value:.6g}") for value in reached[places]],
        "system_tokens": int(np.median(common)),
        "changing_system_tokens": int(np.median(stamps)),
    }


SOURCES = {
    "agent-sessions": (
        agentic, "sessions_agentx_turns.parquet",
        "SemiAnalysisAI/InferenceX agentic coding conversations, in ajith-sirra-amd/InferenceMAX_Rocm_Team",
        "5988286", "Apache-2.0 (InferenceX); the fork states none",
    ),
    "retrieval-sessions": (
        retrieving, "sessions_ragpulse.parquet", "flashserve/RAGPulse", "3672232", "MIT",
    ),
}  # fmt: skip


def main() -> int:
    data = os.environ.get("SERVEGYM_DATA")
    if not data:
        raise WorkloadError("SERVEGYM_DATA is not set; it should be the folder that has measured/")
    folder = Path(__file__).parents[2] / "traces" / "quantiles"
    for family, (figures, file, source, commit, licence) in SOURCES.items():
        path = Path(data) / "measured" / file
        content = {
            "family": family, "source": source, "commit": commit, "licence": licence,
            "changes": "reduced to quantiles", "sha256": files.sha256(path), "made_by": COMMAND,
            "levels": LEVELS.tolist(), **figures(path),
        }  # fmt: skip
        text = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
        (folder / f"{family}{SESSIONS}").write_text("{\n" + text + "\n}\n", "utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WorkloadError as error:
        sys.exit(f"build_sessions: {error}")

"""What is given to options: words that are no values, and a folder of damaged files."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd

from servegym.baselines.learned import policies as learned

WORDS = [
    "", " ", "-1", "0", "-0.0", "1.5", "nan", "-inf", "inf", "1e309", "1e-320", "99999999999999999999", "-9e18", "0x10",
    "1_0", "true", "nope", "Edf", "edf:", "edf:x", "edf:x=", ":", "=", ",", "a=b", "a,b", "a:b=c:d=e", "~", "/", "..",
    "slide-batching:gamma=nan", "slide-batching:gamma=1e400", "gamma:cv=1e200", "waves:n=-1", "qoserve:shares=0-0-0",
    "proserve:ttft_s=inf", "attainment=2", "ttft_p99=-1", "é" * 300, "x" * 4000, "[red]", "%s%n", "$(id)", "--seed",
    "-", "--",
]  # fmt: skip
ROWS = ["0,100,5", "0.5,200,10", "1,50,3"]
HEADER = "arrival_s,prompt_tokens,output_tokens"


POLICY = b"""
from servegym.policy import Policy, register, scheduler


@scheduler
def mine(context, ranks, limits):
    for position in range(context.queue.shape[0]):
        ranks[position].tier, ranks[position].key = 0, float(position)


register(Policy("mine", "scheduler", "First come, first served.", "a test", mine))
"""


def csv(*rows: str, header: str = HEADER) -> bytes:
    return "\n".join([header, *rows, ""]).encode()


TEXTS: dict[str, bytes] = {
    "empty.csv": b"",
    "header.csv": csv(),
    "good.csv": csv(*ROWS),
    "nothing.csv": b"\n\n\n",
    "no-header.csv": csv(*ROWS, header="0,1,2"),
    "negative.csv": csv("0,-5,5"),
    "nan.csv": csv("nan,5,5"),
    "inf.csv": csv("inf,5,5"),
    "huge.csv": csv("0,1e300,5"),
    "long.csv": csv("0,99999999999999999999999,5"),
    "words.csv": csv("zero,five,5"),
    "fraction.csv": csv("0,5.5,1"),
    "zero.csv": csv("0,0,0"),
    "unsorted.csv": csv("5,5,5", "1,5,5"),
    "short-row.csv": csv("0,5"),
    "long-row.csv": csv("0,5,5,5,5"),
    "twice.csv": csv("0,5,5,6", header=HEADER + ",prompt_tokens"),
    "semicolons.csv": csv("0;5;5", header=HEADER.replace(",", ";")),
    "bom.csv": b"\xef\xbb\xbf" + csv(*ROWS),
    "latin1.csv": csv("0,5,5") + b"1,\xe9,5\n",
    "nul.csv": csv("0,5\0,5"),
    "binary.csv": bytes(range(256)) * 20,
    "quote.csv": csv('"0,5,5'),
    "crlf.csv": csv(*ROWS).replace(b"\n", b"\r\n"),
    "year-1.csv": csv("0001-01-01 00:00:00,5,5", header="TIMESTAMP,ContextTokens,GeneratedTokens"),
    "year-9999.csv": csv("9999-12-31 23:59:59,5,5", header="TIMESTAMP,ContextTokens,GeneratedTokens"),
    "zones.csv": csv(
        "2024-01-01 00:00:00+00:00,5,5",
        "2024-01-01 00:00:01+02:00,5,5",
        header="TIMESTAMP,ContextTokens,GeneratedTokens",
    ),
    "weights.csv": csv("0,5,5,1e308", "1,5,5,1e308", header=HEADER + ",weight"),
    "slo.csv": csv("0,5,5,-1", header=HEADER + ",ttft_slo_s"),
    "empty.json": b"",
    "null.json": b"null",
    "number.json": b"5",
    "list.json": b"[]",
    "object.json": b"{}",
    "cut.json": b'{"a": [1, 2',
    "nan.json": b'{"a": NaN}',
    "deep.json": b"[" * 20_000 + b"]" * 20_000,
    "deep-object.json": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "digits.json": b"9" * 5000,
    "twice.json": b'{"name": "a", "name": "b"}',
    "surrogate.json": rb'{"name": "\ud800"}',
    "latin1.json": b'{"name": "\xe9"}',
    "empty.jsonl": b"",
    "good.jsonl": b'{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 5}\n',
    "mixed.jsonl": b'{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 5}\n[1]\n',
    "cut.jsonl": b'{"arrival_s": 0, "prompt_tokens": 5, "output_tok',
    "nested.jsonl": b'{"arrival_s": {"a": 1}, "prompt_tokens": [5], "output_tokens": null}\n',
    "deep.jsonl": b"[" * 20_000 + b"\n",
    "empty.yaml": b"",
    "word.yaml": b"hello",
    "list.yaml": b"- 1\n- 2\n",
    "tab.yaml": b"a:\n\tb: 1\n",
    "twice.yaml": b"load: 1\nload: 2\n",
    "unknown.yaml": b"nothing_known: 1\n",
    "anchors.yaml": b"a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n",
    "self.yaml": b"a: &a [*a]\n",
    "python.yaml": b"!!python/object/apply:os.system ['true']\n",
    "deep.yaml": b"[" * 5_000,
    "pools.yaml": b"pools: []\n",
    "octal.yaml": b"engines: 010\n",
    "date.yaml": b"load: 2024-01-01\n",
    "nan.yaml": b"load: .nan\n",
    "null.yaml": b"load: null\nscheduler: null\n",
    "object.yaml": b"load: {a: 1}\n",
    "two.yaml": b"load: 1\n---\nload: 2\n",
    "control.yaml": b"a: \x01\n",
    "good.py": POLICY,
    "raises.py": b"1 / 0\n",
    "exits.py": b"raise SystemExit(3)\n",
    "slip.py": b"x = (\n",
    "nothing.py": b"",
    "binary.py": b"\0\1\2",
    "prints.py": b"print('hello')\n",
    "name.py": b"import nothing_of_that_name\n",
    "half.parquet": b"PAR1" + b"\0" * 50,
    "not.parquet": b"hello",
    "empty.parquet": b"",
    "empty.gz": b"",
    "model.safetensors": b"\xff" * 64,
    "study.db": b"no database",
    "chain.pem": b"-----BEGIN CERTIFICATE-----\n",
}
SPECIAL = [
    "a-folder", "a-fifo", "a-loop", "missing", "missing.json", "missing/in/it.csv", "/dev/null", "/dev/full",
    "/proc/self/mem",
]  # fmt: skip
SPECIAL += ["good.csv/below", "wrong-columns.parquet", "nested.parquet", "strings.parquet", "no-rows.parquet"]
FILES = [*TEXTS, *SPECIAL]


def fill(folder: Path) -> None:
    """Put the damaged files there."""
    for name, content in TEXTS.items():
        (folder / name).write_bytes(content)
    (folder / "a-folder").mkdir()
    os.mkfifo(folder / "a-fifo")
    (folder / "a-loop").symlink_to("a-loop")
    artifact = Path(learned.__file__).parent / "cma-cluster-routing.json"
    (folder / "good.json").write_bytes(artifact.read_bytes())
    (folder / "cma-cluster-routing.safetensors").write_bytes(artifact.with_suffix(".safetensors").read_bytes())
    columns = ["arrival_s", "prompt_tokens", "output_tokens"]
    pd.DataFrame({"a": [1], "b": ["x"]}).to_parquet(folder / "wrong-columns.parquet")
    pd.DataFrame({name: [[1, 2], [3]] for name in columns}).to_parquet(folder / "nested.parquet")
    pd.DataFrame({name: ["x", None] for name in columns}).to_parquet(folder / "strings.parquet")
    pd.DataFrame({name: np.array([], "f8") for name in columns}).to_parquet(folder / "no-rows.parquet")


def state(folder: Path) -> str:
    """What lies there, so that it can be told whether a command has changed it."""
    found = {}
    for name in FILES:
        path = folder / name
        if path.is_file() and not name.startswith("/"):
            found[name] = hash(path.read_bytes())
        elif not name.startswith("/"):
            found[name] = path.is_dir(), path.is_fifo(), path.is_symlink()
    return json.dumps(found, default=str)

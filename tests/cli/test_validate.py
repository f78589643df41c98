"""`servegym profile from-config`, `servegym devices` and `servegym validate`."""

import json

import numpy as np
import pandas as pd
import pytest

from servegym.latency_models.profile import load_profile, profile_names

CONFIG = {
    "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8,
    "intermediate_size": 2816, "vocab_size": 32000,
}  # fmt: skip


@pytest.mark.slow
def test_a_profile_of_a_config_serves(servegym, tmp_path, monkeypatch):
    monkeypatch.delenv("SERVEGYM_DATA", raising=False)
    (tmp_path / "small.json").write_text(json.dumps(CONFIG))
    document = servegym(
        "profile", "from-config", "small.json", "--gpu", "h100", "--out", "mine.json", "--json", "-"
    ).document
    assert document["error_class"] == "roofline"
    assert load_profile(tmp_path / "mine.json").name == document["name"] == "h100-small"
    served = servegym("simulate", "--device", "mine.json", "--requests", "20", "--json", "-")
    assert served.status == 0, served.stderr
    assert json.loads(served.stdout)["finished"] == 20


@pytest.mark.parametrize(("arguments", "words"), [
    (("profile", "from-config", "nothing.json", "--gpu", "h100"), ("nothing.json", "cannot be read")),
    (("profile", "from-config", "small.json", "--gpu", "tpu"), ("unknown GPU 'tpu'", "h100")),
    (("profile", "from-config", "small.json", "--gpu", "h100", "--tp", "3"), ("3 devices cannot share",)),
    (("profile", "from-config", "small.json", "--gpu", "h100", "--by", "guess"), ("--by guess",)),
    (("profile", "from-config", "small.json", "--gpu", "h100", "--precision", "fp2"), ("fp2",)),
    (("validate", "requests.csv"), ("--profile",)),
    (("validate", "requests.csv", "--profile", "a100-llama3-8b"), ("there is no file requests.csv",)),
    (("validate",), ("takes files of served requests", "python -m experiments validate")),
    (("validate", "--fit", "mine"), ("takes files of served requests", "--profile")),
    (("validate", "run.csv", "--profile", "a100-llama3-8b", "--fit", "My GPU"), ("--fit My GPU", "small letters")),
    (("validate", "a/run.csv", "b/run.csv", "--profile", "a100-llama3-8b"), ("two files have the name run",)),
    (("profile", "from-config", "small.json", "--gpu", "h100", "--kv-precision", "int4"), ("int4", "fp8")),
])  # fmt: skip
def test_wrong_values_are_told_on_one_line(servegym, tmp_path, monkeypatch, arguments, words):
    monkeypatch.delenv("SERVEGYM_DATA", raising=False)
    (tmp_path / "small.json").write_text(json.dumps(CONFIG))
    done = servegym(*arguments)
    assert (done.status, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_devices_lists_all_that_ship(servegym, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = servegym("devices", "--json", "-")
    assert done.status == 0, done.stderr
    rows = json.loads(done.stdout)["profiles"]
    assert [row["name"] for row in rows] == profile_names()
    assert {row["error_class"] for row in rows} >= {"tables", "roofline"}
    assert all(row["error_percent"] is None or row["error_percent"] > 0 for row in rows)
    by_name = {row["name"]: row for row in rows}
    composed, served = by_name["h200-llama3-8b"], by_name["ascend910b-qwen3-8b"]
    assert composed["measured_percent"] is None and composed["fit_percent"] == composed["error_percent"]
    assert served["fit_percent"] is None and served["measured_percent"] == served["error_percent"]
    printed = servegym("devices").stdout
    assert all(name in printed for name in profile_names())
    assert "never measured  " in next(line for line in printed.splitlines() if "h200-llama3-8b" in line)
    assert "Never measured, of class roofline: such profiles are 8 to 33 % off" in printed


@pytest.mark.slow
def test_a_profile_fitted_to_runs_of_ones_own(servegym, tmp_path):
    for name, gap_s in (("light", 0.5), ("heavy", 0.1)):
        table = pd.DataFrame({"arrival_s": gap_s * np.arange(20), "prompt_tokens": 200, "output_tokens": 10,
                              "ttft_s": 0.05, "e2e_s": 0.2})  # fmt: skip
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    asked = ("validate", "light.csv", "heavy.csv", "--profile")
    done = servegym(*asked, "a100-llama3-8b", "--fit", "mine", "--within", "10", "--json", "-")
    document = done.document
    assert set(document["fitted"]["errors_left"]) == {"0", "1"}
    assert document["fitted"]["terms"]["client_s"] > 0
    again = servegym(*asked, "results/validate/mine.json", "--json", "-")
    before, after = (
        {(row["run"], row["metric"]): abs(row["error_percent"]) for row in json.loads(text)["errors"]}
        for text in (done.stdout, again.stdout)
    )
    for run in ("light", "heavy"):
        for figure in ("ttft_mean", "e2e_mean"):
            assert after[run, figure] < min(10, before[run, figure])


@pytest.mark.slow
def test_validate_on_requests_of_ones_own(servegym, tmp_path):
    table = pd.DataFrame({"arrival_s": 0.3 * np.arange(20), "prompt_tokens": 200, "output_tokens": 10,
                          "ttft_s": 0.05, "e2e_s": 0.2})  # fmt: skip
    table.to_csv(tmp_path / "mine.csv", index=False)
    document = servegym("validate", "mine.csv", "--profile", "a100-llama3-8b", "--json", "-").document
    by_metric = {row["metric"]: row for row in document["errors"]}
    one = by_metric["e2e_mean"]
    assert one["error_percent"] == pytest.approx(100 * (one["simulated"] / 0.2 - 1))
    assert (tmp_path / "results/validate/scatter.png").exists()
    assert len(pd.read_csv(tmp_path / "results/validate/errors.csv")) == len(document["errors"])

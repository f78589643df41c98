"""`servegym dataset`: episodes, their dataset and its card."""

import pytest

from servegym.tuners.datasets import datasets_in

minari = pytest.importorskip("minari")
FEW = ("--requests", "8", "--episodes", "2", "--load", "2")


def test_a_dataset_and_its_card(servegym, tmp_path):
    summary = servegym(
        "dataset", "ClusterRouting-v0", *FEW, "--router", "gorouting", "--agent", "random", "--json", "-"
    ).document
    assert summary["id"] == "servegym/cluster-routing/random-v0" and summary["episodes"] == 2
    assert summary["steps"] >= 16 and 0 < summary["tdg_ratio"] <= 1
    card = (tmp_path / summary["card"]).read_text()
    assert f'minari.load_dataset("{summary["id"]}")' in card
    assert '"router": "gorouting"' in card and "| 0 to 1 |" in card and "`random`" in card
    with datasets_in(tmp_path / summary["folder"]):
        kept = minari.load_dataset(summary["id"])
    assert kept.total_steps == summary["steps"]


def test_the_same_seed_gives_the_same_dataset(servegym):
    found = []
    for name in ("one-v0", "two-v0"):
        summary = servegym(
            "dataset", "EngineBatching-v0", "--preset", "overload", *FEW, "--id", name, "--json", "-"
        ).document
        found.append((summary["steps"], summary["tdg_ratio"]))
    assert found[0] == found[1]


def test_what_was_put_right_in_a_trace_is_said(servegym, tmp_path):
    rows = "".join(f"{9 - i},100,{8 * (i != 4)}\n" for i in range(9))
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    done = servegym("dataset", "EngineBatching-v0", *FEW[2:], "--requests", "2", "--trace", str(tmp_path / "t.csv"),
                    "--sort", "--drop-empty")  # fmt: skip
    assert done.status == 0, done.stderr
    assert "Trace: 1 row with 0 prompt or output tokens dropped" in done.stdout
    assert "Trace: rows sorted by time" in done.stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (("Engine-v0",), "unknown environment 'Engine-v0'; there are EngineBatching-v0, "),
    (("EngineBatching-v0", "--preset", "heavy"), "unknown preset 'heavy'; there are light, overload"),
    (("EngineBatching-v0", "--id", "no name", *FEW), "dataset 'no name'"),
])  # fmt: skip
def test_wrong_input_is_one_line(servegym, arguments, message):
    done = servegym("dataset", *arguments)
    assert done.status == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"servegym: {message}")

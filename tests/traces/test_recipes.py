"""The papers' SLO recipes: shares, values, parameters, and what an idle engine can meet."""

import re

import numpy as np
import pytest

from servegym.errors import WorkloadError
from servegym.traces import RECIPES, build_workload

N = 20_000
SHARE = 0.015  # 4 standard errors of a share of 20,000


def table(slo: str, trace: str = "sharegpt", **options):
    return build_workload(trace, requests=N, rate_per_s=1, slo=slo, **options).table


def shares(column) -> dict[float, float]:
    values, counts = np.unique(column, return_counts=True)
    return dict(zip(values.tolist(), counts / len(column), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("slo", RECIPES.names())
def test_the_first_of_more_have_the_same(slo):
    few, more = (build_workload("flowprefill", requests=n, rate_per_s=1, slo=slo, seed=4).table for n in (50, 90))
    for field in few.dtype.names:
        np.testing.assert_array_equal(few[field], more[field][:50])


@pytest.mark.parametrize("slo", ["proserve", "proserve-32b"])
def test_clients_have_one_priority_and_uneven_shares(slo):
    plain, rows = table(slo), table(f"{slo}:clients=6")
    assert (rows["priority"] == plain["priority"]).all()
    assert (rows["client"] % 2 == rows["priority"]).all()
    shares_of_half = 0.5 * np.array([6, 3, 2]) / 11  # 1 : 1/2 : 1/3
    assert shares(rows["client"]) == pytest.approx(dict(enumerate(np.repeat(shares_of_half, 2))), abs=SHARE)
    few = build_workload("sharegpt", requests=50, rate_per_s=1, slo=f"{slo}:clients=6").table
    np.testing.assert_array_equal(few["client"], rows["client"][:50])
    assert set(plain["client"]) == {0}


def test_industrial():
    rows = table("industrial:high_share=0.3", arrivals="industrial-day")
    assert shares(rows["priority"]) == pytest.approx({0: 0.3, 1: 0.7}, abs=SHARE)
    assert (rows["weight"] == np.where(rows["priority"] == 0, 2, 1)).all()
    assert (set(rows["ttft_slo_s"]), set(rows["tpot_slo_s"])) == ({2.0}, {0.1})
    early = rows["arrival_s"] < rows["arrival_s"][-1] / 2
    assert rows["priority"][early].mean() == pytest.approx(rows["priority"][~early].mean(), abs=2 * SHARE)


def test_flowprefill_goes_by_type():
    rows = table("flowprefill:model=qwen2.5-14b", "flowprefill")
    assert shares(rows["application"]) == pytest.approx({0: 0.68, 1: 0.08, 2: 0.20, 3: 0.04}, abs=SHARE)
    assert (rows["ttft_slo_s"] == np.array([0.4, 0.8, 6.5, 9.0])[rows["application"]]).all()
    assert (rows["tpot_slo_s"] == np.array([0.1, 0.1, 0.2, 0.2])[rows["application"]]).all()
    colocated = table("flowprefill-colocated:model=qwen2.5-14b", "flowprefill")
    assert colocated["ttft_slo_s"] == pytest.approx(3 * rows["ttft_slo_s"])
    assert table("flowprefill:scale=0.5", "flowprefill")["ttft_slo_s"].min() == 0.125


def test_flowprefill_without_types_is_text():
    assert set(table("flowprefill", max_prompt_tokens=2000)["ttft_slo_s"]) == {0.25}


def test_flowprefill_takes_types_by_name(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,application\n1,1,file\n1,1,text\n1,1,file\n")
    assert build_workload(path, rate_per_s=1, slo="flowprefill").table["ttft_slo_s"].tolist() == [6, 0.25, 6]
    path.write_text("prompt_tokens,output_tokens,application\n1,1,video\n")
    with pytest.raises(WorkloadError, match="should be text, image, search, file; it is video"):
        build_workload(path, rate_per_s=1, slo="flowprefill")
    path.write_text("prompt_tokens,output_tokens,application\n1,1,3\n")
    with pytest.raises(WorkloadError, match="it is numbers"):
        build_workload(path, rate_per_s=1, slo="flowprefill")


def test_polyserve():
    rows = table("polyserve", "uniform-4096-1024")
    assert shares(rows["ttft_slo_s"]) == pytest.approx({0.3: 1 / 3, 0.5: 1 / 3, 1.0: 1 / 3}, abs=SHARE)
    assert shares(rows["tpot_slo_s"]) == pytest.approx({0.02: 0.1, 0.03: 0.2, 0.05: 0.3, 0.1: 0.4}, abs=SHARE)


def test_polyserve_assigns_what_an_idle_engine_can_meet():
    built = build_workload(
        "uniform-4096-1024", requests=N, rate_per_s=1, slo="polyserve:idle_prefill_tokens_per_s=10000",
        idle_tpot_s=0.025,
    )  # fmt: skip
    rows = built.table
    assert shares(rows["tpot_slo_s"]) == pytest.approx({0.03: 2 / 9, 0.05: 3 / 9, 0.1: 4 / 9}, abs=SHARE)
    prefill_s = rows["prompt_tokens"] / 10_000
    assert (rows["ttft_slo_s"] > prefill_s).all()
    between = (prefill_s > 0.3) & (prefill_s < 0.5)
    assert shares(rows["ttft_slo_s"][between]) == pytest.approx({0.5: 0.5, 1.0: 0.5}, abs=0.03)
    assert built.provenance["slo_notes"][0] == "TPOT SLOs of 20 ms left out: an idle engine takes 25 ms"
    assert "left out for" in built.provenance["slo_notes"][1]
    assert set(table("polyserve:idle_tpot_s=0.5")["tpot_slo_s"]) == {0.1}  # none can be met: the loosest
    assert set(table("polyserve:idle_prefill_tokens_per_s=0.1")["ttft_slo_s"]) == {1.0}


def test_qoserve():
    rows = table("qoserve:low_share=0.2", arrivals="square-wave")
    assert shares(rows["ttlt_slo_s"]) == pytest.approx({600: 1 / 3, 1800: 1 / 3, np.inf: 1 / 3}, abs=SHARE)
    assert (rows["ttlt_slo_s"] == np.array([np.inf, 600, 1800])[rows["application"]]).all()
    assert (set(rows["ttft_slo_s"]), set(rows["tpot_slo_s"])) == ({6.0}, {0.05})
    for kind in range(3):
        assert rows["priority"][rows["application"] == kind].mean() == pytest.approx(0.2, abs=2 * SHARE)
    assert set(table("qoserve")["priority"]) == {0}


def test_semantic():
    rows = table("semantic", "semantic")
    assert shares(rows["urgency"]) == pytest.approx(dict.fromkeys(range(5), 0.2), abs=SHARE)
    assert (rows["priority"] == rows["urgency"]).all()
    assert (rows["output_tokens"].min(), rows["output_tokens"].max()) == (1, 499)


@pytest.mark.parametrize("slo", ["proserve", "proserve-32b", "industrial", "flowprefill", "qoserve"])
def test_slos_are_scaled_where_an_idle_engine_takes_more_than_half(slo):
    plain = build_workload("flowprefill", requests=50, rate_per_s=1, slo=slo)
    smallest = plain.table["tpot_slo_s"].min()
    kept = build_workload("flowprefill", requests=50, rate_per_s=1, slo=slo, idle_tpot_s=smallest / 2)
    assert kept.digest == plain.digest
    assert kept.provenance["slo_notes"] == []
    scaled = build_workload("flowprefill", requests=50, rate_per_s=1, slo=slo, idle_tpot_s=smallest)
    assert scaled.table["tpot_slo_s"] == pytest.approx(2 * plain.table["tpot_slo_s"])
    assert scaled.table["ttft_slo_s"] == pytest.approx(plain.table["ttft_slo_s"])
    assert "TPOT SLOs times 2, so that" in scaled.provenance["slo_notes"][0]
    assert scaled.provenance["idle_tpot_s"] == smallest


def test_slos_of_the_file_are_not_scaled(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,tpot_slo_s\n1,1,0.02\n")
    assert build_workload(path, rate_per_s=1, idle_tpot_s=0.1).table["tpot_slo_s"].tolist() == [0.02]


@pytest.mark.parametrize(("slo", "said"), [
    ("flowprefill:model=gpt", "unknown model of recipe flowprefill 'gpt'"),
    ("flowprefill:scale=0", "scale is 0"),
    ("qoserve:low_share=1.5", "low_share is 1.5; it should be 0 to 1"),
    ("industrial:high_share=-1", "high_share is -1"),
    ("proserve:idle_tpot_s=0", "idle_tpot_s is 0"),
    ("proserve:clients=3", "clients is 3; it should be 0, or even"),
    ("polyserve:idle_tpot_s=0", "idle_tpot_s is 0"),
    ("polyserve:idle_prefill_tokens_per_s=0", "idle_prefill_tokens_per_s is 0"),
    ("given:idle_tpot_s=1", "unknown parameter 'idle_tpot_s'"),
])  # fmt: skip
def test_wrong_parameters(slo, said):
    with pytest.raises(WorkloadError, match=said):
        build_workload("sharegpt", requests=10, rate_per_s=1, slo=slo)


def test_classes_of_qoserve_are_shared_out_as_told():
    rows = table("qoserve:shares=70-15-15,ttlt_s=60-120,ttft_s=3,tpot_s=0.02", idle_tpot_s=0.03)
    assert shares(rows["application"]) == pytest.approx({0: 0.7, 1: 0.15, 2: 0.15}, abs=SHARE)
    assert [set(rows["ttlt_slo_s"][rows["application"] == kind]) for kind in range(3)] == [{np.inf}, {60}, {120}]
    assert set(rows["ttft_slo_s"]) == {3}
    assert set(rows["tpot_slo_s"]) == {0.02}  # as asked for, on any device
    assert set(table("qoserve:shares=0-1-0")["application"]) == {1}
    np.testing.assert_array_equal(table("qoserve:shares=0.5-0.5-0.5")["application"], table("qoserve")["application"])


@pytest.mark.parametrize("slo", ["proserve", "proserve-32b", "industrial"])
def test_slos_and_shares_of_priorities_as_told(slo):
    rows = table(f"{slo}:ttft_s=0.5,tpot_s=0.03,high_share=0.2", idle_tpot_s=0.02)
    assert (set(rows["ttft_slo_s"]), set(rows["tpot_slo_s"])) == ({0.5}, {0.03})
    assert shares(rows["priority"]) == pytest.approx({0: 0.2, 1: 0.8}, abs=SHARE)
    slower = table(f"{slo}:ttft_s=0.5", idle_tpot_s=0.2)  # not told: scaled to the device, as ever
    assert set(slower["tpot_slo_s"]) == {0.4}


def test_slos_of_polyserve_as_told():
    rows = table("polyserve:ttft_s=1-2,tpot_s=0.04-0.08,shares=3-1")
    assert shares(rows["ttft_slo_s"]) == pytest.approx({1: 0.5, 2: 0.5}, abs=SHARE)
    assert shares(rows["tpot_slo_s"]) == pytest.approx({0.04: 0.75, 0.08: 0.25}, abs=SHARE)
    same = table("polyserve:shares=0.1-0.2-0.3-0.4")["tpot_slo_s"]
    np.testing.assert_array_equal(same, table("polyserve")["tpot_slo_s"])


def test_slos_of_flowprefill_as_told():
    rows = table("flowprefill:ttft_s=1-2-3-4,tpot_s=0.1-0.2-0.3-0.4,scale=2", trace="flowprefill", idle_tpot_s=0.3)
    assert set(rows["ttft_slo_s"]) == {2, 4, 6, 8} and set(rows["tpot_slo_s"]) == {0.1, 0.2, 0.3, 0.4}
    assert set(table("flowprefill-colocated:ttft_s=1-2-3-4")["ttft_slo_s"]) == {3}  # sharegpt is text


@pytest.mark.parametrize(("slo", "said"), [
    ("qoserve:shares=70-30", "qoserve: shares is '70-30'; it should be 3 numbers of 0 or more"),
    ("qoserve:shares=0-0-0", "not all 0: parts for interactive"),
    ("qoserve:shares=a-b-c", "numbers with - between them, such as 70-15-15"),
    ("qoserve:shares=nan-1-1", "3 numbers of 0 or more"),
    ("qoserve:ttlt_s=600", "it should be 2 numbers"),
    ("qoserve:ttlt_s=600-0", "ttlt_s is 0.0; it should be above 0"),
    ("qoserve:ttft_s=-1", "ttft_s is -1.0; it should be above 0"),
    ("proserve:tpot_s=0", "proserve: tpot_s is 0.0; it should be above 0"),
    ("proserve:high_share=2", "high_share is 2.0; it should be 0 to 1"),
    ("polyserve:ttft_s=2-1", "it should ascend"),
    ("polyserve:tpot_s=0.02-0.05", "shares is '10-20-30-40'; it should be 2 numbers"),
    ("flowprefill:ttft_s=1-2", "4 numbers, of text, image, search, file"),
])  # fmt: skip
def test_classes_told_wrongly(slo, said):
    with pytest.raises(WorkloadError, match=re.escape(said)):
        table(slo)


def test_slos_of_ones_own_and_nothing_else():
    rows, plain = table("ttft_s=2,tpot_s=0.06", idle_tpot_s=0.05), table("given")
    assert (set(rows["ttft_slo_s"]), set(rows["tpot_slo_s"]), set(rows["ttlt_slo_s"])) == ({2.0}, {0.06}, {np.inf})
    named, bare = table("same:ttft_s=2,tpot_s=0.06"), table("same")
    for field in rows.dtype.names:
        np.testing.assert_array_equal(rows[field], named[field])
        np.testing.assert_array_equal(plain[field], bare[field])
        assert field in ("ttft_slo_s", "tpot_slo_s") or np.array_equal(rows[field], plain[field], equal_nan=True)
    assert set(table("ttlt_s=60")["ttlt_slo_s"]) == {60.0}


def test_classes_by_shares():
    rows = table("classes:chat=4:ttft_s=2:tpot_s=0.06,batch=1:ttlt_s=1800")
    assert shares(rows["application"]) == pytest.approx({0: 0.8, 1: 0.2}, abs=SHARE)
    chat = rows["application"] == 0
    assert (set(rows["ttft_slo_s"][chat]), set(rows["tpot_slo_s"][chat])) == ({2.0}, {0.06})
    assert (set(rows["ttlt_slo_s"][chat]), set(rows["ttlt_slo_s"][~chat])) == ({np.inf}, {1800.0})
    assert (set(rows["priority"]), set(rows["weight"])) == ({0}, {1.0})


@pytest.mark.parametrize(("slo", "message"), [
    ("ttft_s=2", "the SLO has ttft_s; it should have ttft_s and tpot_s, or ttlt_s"),
    ("ttft_s=2,tpot_s=0.06,ttlt_s=9", "the SLO has ttft_s and tpot_s and ttlt_s; it should have"),
    ("ttft_s=2,ttft_s=3,tpot_s=0.06", "ttft_s is set twice"),
    ("tftt_s=2", r"^SLOs 'tftt_s=2': unknown parameter 'tftt_s' \(did you mean 'ttlt_s'\?\)"),
    ("ttlt_s=0", "the SLO: ttlt_s is 0.0; it should be above 0"),
    ("classes:chat=0.8", "class chat has no SLO; it should have"),
    ("classes:chat=0.8:ttft=2:tpot_s=0.06", r"class chat: unknown setting 'ttft' \(did you mean 'ttft_s'\?\)"),
    ("classes:chat=much:ttlt_s=2", "class chat: its share is 'much'; it should be a number above 0"),
    ("classes:chat=1:ttlt_s=2:ttlt_s=3", "class chat: .* sets something twice"),
    ("classes:a=1:ttlt_s=2,a=1:ttlt_s=3", "a is set twice"),
])  # fmt: skip
def test_wrong_slos_of_ones_own(slo, message):
    with pytest.raises(WorkloadError, match=message):
        table(slo)


def test_the_traces_own_slos_are_told_to_win(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,ttft_slo_s\n0,5,5,3\n1,5,5,4\n")
    workload = build_workload(path, slo="ttft_s=2,tpot_s=0.06")
    assert workload.table["ttft_slo_s"].tolist() == [3, 4]
    note = "the trace's own ttft_slo_s take precedence over those of ttft_s=2,tpot_s=0.06"
    assert workload.provenance["slo_notes"] == [note]


@pytest.mark.parametrize("slo", ["proserve", "qoserve:shares=0-1-1", "ttlt_s=600", "classes:batch=1:ttlt_s=600"])
def test_a_ttlt_of_a_recipe_does_not_replace_the_traces_own_slos(tmp_path, slo):
    path = tmp_path / "own.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,ttft_slo_s,tpot_slo_s\n0,5,5,3,0.2\n1,5,5,4,0.1\n")
    workload = build_workload(path, slo=slo)
    assert workload.table["tpot_slo_s"].tolist() == [0.2, 0.1] and np.isinf(workload.table["ttlt_slo_s"]).all()
    assert workload.provenance["slo_notes"][-1] == (
        f"the trace's own ttft_slo_s, tpot_slo_s take precedence over those of {slo}"
    )


def test_defaults_in_place_of_missing_slos_are_said(tmp_path):
    for column, notes in (
        ("weight", ["the trace has no ttft_slo_s and tpot_slo_s: TTFT 1 s and TPOT 0.05 s by default"]),
        ("ttft_slo_s", ["the trace has no tpot_slo_s: TPOT 0.05 s by default"]),
        ("ttlt_slo_s", []),
    ):
        path = tmp_path / "own.csv"
        path.write_text(f"arrival_s,prompt_tokens,output_tokens,{column}\n0,5,5,3\n")
        assert build_workload(path, slo="given").provenance["slo_notes"] == notes

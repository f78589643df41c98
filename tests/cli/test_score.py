"""`servegym score`: what it prints, writes and refuses."""

PANEL = """
trace: [azure-conv]
device: [a100-llama3-8b]
load: [0.7, 1.4]
requests: 40
first_seed: 7000000
seeds: 1
"""


def test_a_score_is_printed_and_one_document(servegym, tmp_path):
    (tmp_path / "hidden.yaml").write_text(PANEL, "utf-8")
    arguments = ("edf", "--panel", "hidden.yaml", "--least", "0", "--baseline", "sjf", "--baseline", "sarathi-fcfs")
    done = servegym("score", *arguments, "--json", "-")
    found = done.document
    assert (found["policy"], found["panel"], found["stage"]) == ("edf", "hidden", "full")
    assert found["relative_to"] == "the better of sjf and sarathi-fcfs"
    assert found["low"] is None  # of one seed there is no interval
    words = " ".join(done.stderr.split())
    assert f"{found['combined_score']:.4f} edf on panel hidden: TDG over the better of sjf" in words
    (heads,) = [line.split() for line in done.stderr.splitlines() if line.split()[:1] == ["edf"]]
    (shares,) = [line.split() for line in done.stderr.splitlines() if line.split()[:1] == ["share"]]
    assert heads == ["edf", "sjf", "sarathi-fcfs"]
    assert shares[2] == f"{found['metrics']['share of sjf']:.4f}" and found["metrics"]["share of sjf"] <= 1
    assert found["artifacts"]["feedback"].split(".")[0] in words


def test_what_cannot_be_scored_ends_with_one_line(servegym, tmp_path):
    (tmp_path / "mine.py").write_text("x = 1\nimport subprocess\n", "utf-8")
    done = servegym("score", "mine.py")
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith("servegym: mine.py, line 2: imports subprocess; a policy may import")
    for more, words in (
        (("--panel", "nowhere"), "unknown panel 'nowhere'"),
        (("--baseline", "sjf", "--baseline", "nosuch"), "unknown scheduler 'nosuch'"),
        (("--baseline", "sjf"), "sjf is the only baseline; name two or more, or none"),
        (("--least", "nan"), "least is nan; it should be a score from 0 to 1"),
        (("--least", "2"), "least is 2; it"),
    ):
        assert words in servegym("score", "edf", *more).refusal
    (tmp_path / "binary.yaml").write_bytes(b"\xff")
    done = servegym("score", "edf", "--panel", "binary.yaml")
    assert done.status == 2 and done.stderr.startswith("servegym: binary.yaml is no YAML: 'utf-8' codec")

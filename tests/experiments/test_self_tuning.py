"""The study of self-tuning: its cells, its page, and that it goes on from what is kept."""

import json

import pytest

from experiments import self_tuning

pytestmark = pytest.mark.slow


def test_a_small_study(tmp_path, capsys):
    page, ledger = tmp_path / "page.md", tmp_path / "runs.jsonl"
    command = [str(page), "--cells", "2", "--requests", "110", "--ledger", str(ledger)]
    self_tuning.main(command)
    text = page.read_text(encoding="utf-8")
    assert "| all | 2 |" in text and "2 of 192 cells" in text and "Refuted by" in text
    rows = [row for row in map(json.loads, ledger.read_text().splitlines()) if "run" in row]
    assert [row["run"][0] for row in rows] == ["expected-gain", "self-tuned:expected-gain"] * 2
    kept = ledger.read_bytes()
    self_tuning.main(command)
    assert ledger.read_bytes() == kept and page.read_text(encoding="utf-8") == text


def test_what_the_page_says():
    figures = {"slo_attainment": 0.5, "starved": 0.1, "ttft_p99_s": 3.0}
    rows = []
    for number, cell in enumerate(self_tuning.cells(6)):
        for policy, gain, attainment in (("expected-gain", 0.8, 0.5), ("self-tuned:expected-gain", 0.9, 0.4)):
            more = {"tdg_ratio": gain, "slo_attainment": attainment, "changes": int(gain == 0.9 and number < 2)}
            rows.append({"run": [policy, list(cell), number], **figures, **more})
    text = self_tuning.page(rows, 110)
    assert "| all | 6 | 0.8000 | +0.1000 | 0.5000 | -0.1000 |" in text
    assert "changed its parameters in 2 of 6 runs" in text and "more than a point below in 6" in text

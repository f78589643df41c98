"""What a policy file may not say is refused by its text, with the line; every shipped policy may be said."""

from pathlib import Path

import pytest

from servegym.errors import PolicyError
from servegym.evaluation.scoring.source_rules import check_source

ROOT = Path(__file__).parents[3]
REFUSED = {
    "import os": "imports os; a policy may import dataclasses",
    "import servegym.evaluation.panels.panel": "imports servegym.evaluation.panels.panel",
    "from servegym import simulate": "imports servegym",
    "import servegym\nservegym.traces.loading.load_trace('x')": "uses servegym.traces",
    "from servegym.simulator.compilation.kernels import sys": "imports sys",
    "from servegym.simulator.compilation import kernels as compilation\ncompilation.os.remove('x')": "uses .os",
    "import numpy as np\nnp.fromfile('x')": "uses .fromfile",
    "x = open('hidden.yaml').read()": "uses open",
    "().__class__.__subclasses__()": "uses .__",
    "from numba import objmode": "imports numba",
    "from servegym.simulator.policies import gains\ngains.Gain.ideal = None": "writes into gains, which it imported",
    "from .elsewhere import x": "imports .elsewhere",
    "def f(:": "SyntaxError",
    "x = 'a\\0b'\n\0": "null bytes",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_leads_out_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text, "utf-8")
    with pytest.raises(PolicyError) as refused:
        check_source(file)
    assert REFUSED[text] in str(refused.value) and str(refused.value).startswith("mine.py")
    if "\0" not in text:
        assert f"line {len(text.splitlines())}: " in str(refused.value)


@pytest.mark.parametrize("folder", ["schedulers", "routers"])
def test_shipped_policies_may_be_said(folder: str) -> None:
    for file in sorted((ROOT / "baselines" / folder).glob("*.py")):
        check_source(file)

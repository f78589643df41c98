"""Files of policies: what is in them when they are loaded counts."""

import os
import sys

import pytest

from servegym.errors import PolicyError
from servegym.evaluation.policy_files import load_policy_files

pytestmark = pytest.mark.nojit


def test_an_edit_of_the_same_size_within_the_same_second_counts(tmp_path, monkeypatch):
    """Python would take the bytecode of the text before: it looks at the size and at the second of the last change."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "edited_by_a_search.py"
    for value in (1, 2):
        path.write_text(f"VALUE = {value}\n")
        os.utime(path, (1e9, 1e9))
        load_policy_files([path])
        assert value == sys.modules["servegym_policies_edited_by_a_search"].VALUE


def test_errors_name_the_option_only_where_a_file_was_given_by_it(tmp_path):
    path = tmp_path / "raises.py"
    path.write_text("\n1 / 0\n")
    for given, words in (({}, "--load-policies raises.py, line 2: Zero"), ({"option": ""}, "raises.py, line 2: Zero")):
        with pytest.raises(PolicyError, match=f"^{words}"):
            load_policy_files([path], **given)

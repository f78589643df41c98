"""`servegym calibrate`: a file in, a profile and a picture out, and errors before anything is written."""

import json
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from servegym.cli.calibrate import calibrate, name_of
from servegym.errors import ProfileError, ServegymError
from servegym.latency_models.profile import load_profile
from servegym.latency_models.sampling import random_batches

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(calibrate)


@pytest.fixture
def batches(tmp_path):
    """Batches that take what the A100 takes."""
    random = random_batches(200, seed=6)
    columns = (
        "prefill_tokens", "prefill_requests", "prefill_cached_tokens", "decode_requests", "decode_cached_tokens",
    )  # fmt: skip
    table = pd.DataFrame({name: random[name] for name in columns})
    path = tmp_path / "My GPU, run 1.csv"
    table.assign(duration_s=load_profile("a100-llama3-8b").device.evaluate(random)).to_csv(path, index=False)
    return path


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})


def test_a_profile_and_a_picture(batches, tmp_path):
    done = run(batches, "--out", tmp_path / "made", "--kv-blocks", 5000, "--seed", 3)
    assert done.exit_code == 0, done.output
    profile = load_profile(tmp_path / "made" / "my-gpu-run-1.json")
    assert profile.name == "my-gpu-run-1"
    assert profile.device.form == "piecewise"
    assert profile.kv.total_blocks == 5000
    assert profile.provenance["seed"] == 3
    assert profile.provenance["sources"][0]["table"] == batches.name
    assert (tmp_path / "made" / "my-gpu-run-1.png").read_bytes().startswith(b"\x89PNG")
    assert "piecewise device, against measured" in done.output


def test_json_on_standard_output_is_one_document(batches, tmp_path):
    done = run(batches, "--out", tmp_path, "--name", "mine", "--form", "linear", "--json", "-")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["device"]["form"] == "linear"
    assert [Path(file).name for file in document["files"]] == ["mine.json", "mine.png"]
    assert "against measured" in done.stderr


@pytest.mark.parametrize(("arguments", "message"), [
    (("--form", "roofline"), "made from specifications"),
    (("--like", "a200"), "unknown profile 'a200'"),
    (("--name", "../mine"), "does not match"),
])  # fmt: skip
def test_wrong_input_leaves_nothing_behind(batches, tmp_path, arguments, message):
    done = run(batches, "--out", tmp_path / "made", *arguments)
    assert isinstance(done.exception, ProfileError)
    assert message in str(done.exception)
    assert not (tmp_path / "made").exists()


def test_an_output_folder_that_is_a_file(batches):
    done = run(batches, "--out", batches)
    assert isinstance(done.exception, ServegymError)
    assert "is a file; name a folder" in str(done.exception)


def test_shares_out_of_range_are_refused(batches):
    done = run(batches, "--held-out", 1.5)
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("file", "name"), [("A100.batches.csv", "a100.batches"), ("_x y_.csv", "x-y"), ("---.csv", "calibrated")]
)
def test_names_from_files(file, name):
    assert name_of(Path(file)) == name

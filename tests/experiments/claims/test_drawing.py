"""Legends of pictures of claims."""

from experiments.claims.harness.drawing import legend_columns


def test_a_legend_has_as_many_columns_as_fit() -> None:
    assert legend_columns(["slide-batching", "sjf"], 12.0) == 2
    assert legend_columns(["Sarathi-Priority, high"] * 6, 6.2) == 2
    assert legend_columns(["edf"] * 8, 12.0) == 5
    assert legend_columns(["a label that is longer than the picture is wide"], 2.0) == 1

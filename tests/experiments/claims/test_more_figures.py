"""What claims of single figures compute, by hand."""

import numpy as np
import pytest

from experiments.claims import polyserve_fig2_4, polyserve_fig7, proserve_fig8, qoserve_fig10
from experiments.claims.harness.fleets import DEVICE
from experiments.claims.harness.settings import QUICK, Setting, idle_prefill_s


def test_prompts_of_the_toy_example_take_as_long_as_they_should():
    seconds = np.array([[0.25, 0.7]])
    table = np.zeros(2, [("prompt_tokens", "i4")])
    table["prompt_tokens"] = proserve_fig8.tokens_of("a100-llama3-8b", seconds)[0]
    assert idle_prefill_s("a100-llama3-8b", table, proserve_fig8.CHUNK_TOKENS) == pytest.approx(seconds[0], abs=0.01)


def test_draws_of_the_toy_example_leave_room_only_where_the_figure_does():
    least, most = np.transpose(proserve_fig8.PREFILL_S)
    busy, light = (0, 2), (1,)
    for load, fits in ((sum(most[list(light)]) + most[4], True), (sum(least[list(busy)]) + least[4], False)):
        assert (load < proserve_fig8.TTFT_S) == fits
    assert sum(least[list(light)]) + least[3] + least[4] > proserve_fig8.TTFT_S  # R1 and R2 on B
    assert sum(most[list(busy)]) + most[3] < proserve_fig8.TTFT_S  # R1 on A


def test_batches_of_a_tpot():
    device = polyserve_fig2_4.steady(DEVICE)
    found = [polyserve_fig2_4.decode_batch(device, 1000.0, 500.0, tpot_s) for tpot_s in (0.001, 0.01, 0.02)]
    assert found[0] == 0 < found[1] < found[2] <= device.capacity_tokens / 1250
    at = found[2]
    assert device.gemm_of_decodes_s[at - 1] + device.decode_attention_s(at * 1250.0) < 0.02
    assert polyserve_fig2_4.token_batch(device, 1000.0, 500.0, 0.02) > found[2]


def test_highest_load_is_where_a_latency_first_passes_its_slo():
    loads = qoserve_fig10.LOADS
    over = np.full((len(loads), 3), 0.5)
    over[3:, 0] = 1.5  # half way between the third load and the fourth
    over[:, 2] = 2.0  # from the first on
    found = qoserve_fig10.highest_load(over)
    assert found == pytest.approx([(loads[2] + loads[3]) / 2, loads[-1], loads[0]])


def test_tiers_are_turned_round_in_every_second_part_only():
    from experiments.claims.harness.fleets import requests_of, window_s

    setting = Setting("uniform-512-512", DEVICE)
    cell = next(iter(polyserve_fig7.cells(setting, QUICK)))
    plain, turned = requests_of(cell, 20.0), polyserve_fig7.turning(cell, 20.0)
    begin_s, end_s = window_s(cell)
    part = (plain.table["arrival_s"] - begin_s) // ((end_s - begin_s) / polyserve_fig7.TURNS)
    same = plain.table["tpot_slo_s"] == turned.table["tpot_slo_s"]
    assert same[part % 2 == 0].all() and not same[part == 1].all()
    assert (turned.table["tpot_slo_s"][part == 1] < 0.04).mean() > 0.5  # 40 + 30 % are of the tight tiers

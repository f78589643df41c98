"""ProServe, Figure 12: GoRouting and Min-Load with local schedulers, engines co-located."""

from __future__ import annotations

from servegym.experiments.claims.harness.claim import claim
from servegym.experiments.claims.harness.clusters import (
    ENGINES,
    GOROUTING,
    LEAST_LOADED,
    Grid,
    Variant,
    serve_first_tokens,
)
from servegym.experiments.claims.harness.settings import FAMILIES
from servegym.experiments.claims.proserve_fig11 import DEVICES

GRID = Grid(
    "slide-batching",
    "TDG ratio",
    "tdg_ratio",
    lambda setting: f"engines={ENGINES}",
    {
        "fallback to the least loaded, as the public code does": Variant(LEAST_LOADED),
        "time of decodes in every batch (decodes=recurring)": Variant(f"{GOROUTING}:decodes=recurring"),
        "the device takes what the estimator says": Variant(GOROUTING, exact_estimator=True),
    },
)

judge = claim(
    "proserve-fig12",
    figure="Figure 12",
    paper="With engines co-located, all tokens judged: as in Figure 11, GoRouting improves every local scheduler at "
    "high load and matches Min-Load at light load; SlideBatching improves more than GoRouting.",
    hypothesis="8 engines. TDG ratio, with each of slide-batching, vllm-fcfs, weighted-vtc, sarathi-fcfs, "
    "sarathi-priority and fairbatching: mean of loads 1.0 and 1.4, gorouting less min-load is above 0; at load 0.3 "
    "gorouting is less than 1 % below min-load. Mean of loads 1.0 and 1.4, slide-batching with min-load is above each "
    "other scheduler with gorouting: it adds more than the router.",
    refuted_by="An interval of one of these differences wholly on the other side of its limit.",
    cells=GRID.cells,
    measure=serve_first_tokens,
    picture=GRID.picture,
    caption="TDG ratio of local schedulers under three routers, 8 co-located engines, A100; means of seeds (intervals "
    "of the differences are in the table).",
    reading="SlideBatching with Min-Load is ahead of every baseline with GoRouting in 38 of 40 cases, by up to 0.63 "
    "(behind is vllm-fcfs on mooncake-conversation on Ascend). GoRouting is above Min-Load with sarathi-fcfs and "
    "fairbatching in all 8 settings and with weighted-vtc and sarathi-priority in 7, by 0.01 to 0.20, mostly at load "
    "1: at 1.4 little is left on sharegpt and azure-conv on the A100. With vllm-fcfs it is above in 3 settings and "
    "below in 3 (by at most 0.022), and with SlideBatching, which is near 1 at load 1 in most settings, above in 2 (by "
    "0.008 and 0.014) and below in 1 (by 0.005). At light load no check fails; those undecided are of "
    "mooncake-conversation. The fallback matters on mooncake-conversation only: with the least loaded engine in place "
    "of a random one GoRouting is below Min-Load there, with all local schedulers but vllm-fcfs. Decodes counted in "
    "every batch and an exact estimator change little: with SlideBatching GoRouting still adds next to nothing.",
    families=FAMILIES,
    devices=DEVICES,
    appendix=GRID.appendix,
)(GRID.judge)

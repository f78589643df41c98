"""ProServe, Figure 12: GoRouting and Min-Load with local schedulers, engines co-located."""

from experiments.claims.harness.clusters import ENGINES, GOROUTING, LEAST_LOADED, Grid, Variant, serve_first_tokens
from experiments.claims.harness.registry import claim
from experiments.claims.harness.settings import FAMILIES
from experiments.claims.proserve_fig11 import DEVICES

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
    cells=GRID.cells,
    measure=serve_first_tokens,
    picture=GRID.picture,
    families=FAMILIES,
    devices=DEVICES,
    appendix=GRID.appendix,
)(GRID.judge)

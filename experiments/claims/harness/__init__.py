"""What the claims share: settings, cells, measures, checks, the study that runs them and the page that shows them."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.experiments.claims.harness: import it under that name")

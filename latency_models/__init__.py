"""Times of batches: device models and estimators, their fitting, and the profiles that ship.

from servegym.latency_models.profile import load_profile
profile = load_profile("a100-llama3-8b")
"""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.latency_models: import it under that name")

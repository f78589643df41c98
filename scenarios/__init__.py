"""Specs of scenarios: the requests, the engines and the policies, fixed or as a distribution."""

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.scenarios: import it under that name")

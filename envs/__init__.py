"""Gymnasium environments of LLM serving."""

from typing import TYPE_CHECKING

if not __name__.startswith("servegym."):
    raise ImportError("this folder is the package servegym.envs: import it under that name")

if not TYPE_CHECKING:  # to a type checker, a name that is not there is an error
    from servegym.envs.registration import class_named as __getattr__  # noqa: F401

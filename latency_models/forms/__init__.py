"""The registry of latency forms: every module of this package that binds a `LatencyForm` to the name FORM."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from servegym.errors import ProfileError, unknown_name
from servegym.latency_models.form import LatencyForm


@functools.cache
def forms() -> Mapping[str, LatencyForm]:
    """All forms by name, in alphabetical order of their modules."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{module}").FORM for module in modules]
    return MappingProxyType({form.name: form for form in found})


def get_form(name: str) -> LatencyForm:
    """The form of this name. Raises ProfileError, which lists the known ones, for an unknown name."""
    try:
        return forms()[name]
    except KeyError:
        raise ProfileError(unknown_name("latency form", name, forms())) from None


def estimator_forms() -> list[str]:
    """Names of the forms that can be an estimator: those with a time for a single request."""
    return [name for name, form in forms().items() if form.core_s is not None]

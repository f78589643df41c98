"""Checks a spec: each value against its field's bounds, then combinations of fields. Errors are SpecErrors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servegym.errors import SpecError
from servegym.scenarios import values
from servegym.scenarios.demand import STEADY
from servegym.scenarios.fields import (
    CHOICE,
    COLUMNS,
    CORRECTION,
    FLAG,
    FRONT_END,
    GAIN,
    INCIDENTS,
    LOAD_PROFILE,
    NAME,
    NUMERIC,
    POLICY,
    PREDICTOR,
    SPECULATION,
    WHOLE,
    WINDOW,
    Option,
)
from servegym.scenarios.parts import LINK_GB_PER_S, Fleet
from servegym.scenarios.ranges import Range

if TYPE_CHECKING:
    from servegym.scenarios.spec import ServingSpec

OBJECTS = {GAIN: ("Gain", "first_weight"), PREDICTOR: ("Predictor", "predict")}  # class, what an object of it has


def check(spec: ServingSpec, parts: Mapping[str, type], leaves: Mapping[str, tuple[str, Option]]) -> None:
    """Raise SpecError for an invalid spec. parts, leaves: parts and fields of a spec, by name (spec.py)."""
    for part, kind in parts.items():
        if not isinstance(getattr(spec, part), kind):
            raise SpecError(f"{part} is {getattr(spec, part)!r}; it should be {kind.__name__}(...)")
    for name, (_, option) in leaves.items():
        check_value(name, option, spec[name])
    _check_demand(spec)
    _check_fleet(spec.fleet, spec)


def check_value(name: str, option: Option, value: Any) -> None:
    """Raise SpecError for a value that a field cannot have."""
    kind = option.kind
    if value is None and option.optional:
        return
    if kind in NUMERIC:
        several, whole = isinstance(value, tuple), kind == WHOLE and not isinstance(value, Range)
        for number in value if several else (value.low, value.high) if isinstance(value, Range) else (value,):
            if not values.is_number(number, whole) or not option.allows(number):
                raise SpecError(f"{name} is {value!r}; it should be {option.allowed_text}, several of such, or a range")
        if several and not value:
            raise SpecError(f"{name} is (); there should be at least one number")
    elif kind in (NAME, POLICY):
        for item in value if isinstance(value, tuple) and value else (value,):
            if not (isinstance(item, str) and item) and not (hasattr(item, "kind") or hasattr(item, "kv")):
                table = hasattr(item, "columns")  # a DataFrame, of many lines
                shown = f"a {type(item).__name__}" if table else repr(value)
                right = "the name of a file, such as one that its to_parquet writes" if table else "a name, or several"
                raise SpecError(f"{name} is {shown}; it should be {right}")
    elif kind == CHOICE and value not in option.choices:
        raise SpecError(f"{name} is {value!r}; it should be {option.allowed_text}")
    elif kind == LOAD_PROFILE:
        _check_profiles(value)
    elif kind == INCIDENTS and not isinstance(value, tuple):
        raise SpecError(f"{name} is {value!r}; it should be a list of incidents")
    elif kind == WINDOW and value not in ("seed", "first") and not values.is_number(value, True):
        raise SpecError(f"{name} is {value!r}; it should be seed, first or a whole number of 0 or more")
    elif kind == COLUMNS:
        values.value_of(name, option, value)
    elif kind == FRONT_END:
        values.front_end_from(value)
    elif kind == SPECULATION:
        values.speculation_from(value)
    elif kind in OBJECTS and not (isinstance(value, str) or hasattr(value, OBJECTS[kind][1])):
        raise SpecError(f"{name} is {value!r}; it should be text, keys with values, or a {OBJECTS[kind][0]}")
    elif kind == FLAG and not isinstance(value, bool):
        raise SpecError(f"{name} is {value!r}; it should be true or false")
    elif kind == CORRECTION and not isinstance(value, bool) and not hasattr(value, "theta"):
        raise SpecError(f"{name} is {value!r}; it should be true, false or keys with values")


def _check_profiles(value: Any) -> None:
    for profile in values.profiles_of(value) if isinstance(value, tuple) and value else (value,):
        try:
            parts = [(share + 0.0, factor + 0.0) for share, factor in profile]
        except (TypeError, ValueError):
            parts = []
        if not parts or not all(0 < number < math.inf for part in parts for number in part):
            raise SpecError(
                f"a load profile of {profile!r}; it should be parts, each a share of the requests and a factor, above 0"
            )


def _check_demand(spec: ServingSpec) -> None:
    demand = spec.demand
    if demand.load is not None and demand.rate_per_s is not None:
        raise SpecError("load and rate_per_s (--load and --rate) are both given; give one of them")
    drawn = demand.cv != 1 or values.profiles_of(demand.load_profile) != (STEADY,)
    if demand.arrivals is not None and drawn:
        raise SpecError(f"arrivals {demand.arrivals} and a load profile or cv are given; give one of them")
    if demand.resample and demand.split is not None:
        raise SpecError("a split and resample are given; a split cuts runs from the file as it is")
    paced = [name for name in ("load", "rate_per_s", "arrivals") if spec[name] is not None]
    paced += ["cv or a load profile"] if drawn else []
    if demand.clients is not None and paced:
        raise SpecError(
            f"clients and {paced[0]} are given; clients send a request when they have the last answer "
            "(--max-concurrency limits requests that come at a rate)"
        )


def _check_fleet(fleet: Fleet, spec: ServingSpec) -> None:
    counts = (fleet.engines, fleet.prefill, fleet.decode)
    if fleet.pools and counts != (Fleet.engines, Fleet.prefill, Fleet.decode):
        raise SpecError("pools are given, and engines, prefill or decode too; pools have their own numbers of engines")
    if (fleet.idle_w is None) != (fleet.busy_w is None):
        given, missing = ("busy_w", "idle_w") if fleet.idle_w is None else ("idle_w", "busy_w")
        raise SpecError(f"{given} is given and {missing} is not; energy needs both (--idle-power, --busy-power)")
    if bool(fleet.prefill) != bool(fleet.decode):
        there, missing = ("prefill", "decode") if fleet.prefill else ("decode", "prefill")
        raise SpecError(f"there are {there} engines and no {missing} engines; give both")
    if fleet.prefill and fleet.engines != 1:
        raise SpecError("--engines is given, and --prefill and --decode too; give one of the two")
    roles = {pool.role for pool in fleet.pools}
    if len(roles) == 1 and roles < {"prefill", "decode"}:
        there, missing = ("prefill", "decode") if "prefill" in roles else ("decode", "prefill")
        raise SpecError(f"pools: all have the role {there}; add one with the role {missing}, or leave the role out")
    if not fleet.is_disaggregated:
        decoding = spec.policies.decode_scheduler
        if decoding is not None:
            name = decoding if isinstance(decoding, str) else values.plain(decoding)
            raise SpecError(
                f"{name} is the scheduler of decode engines, and there are none; give --prefill P --decode D"
            )
        if fleet.link_gb_per_s != LINK_GB_PER_S:
            raise SpecError("a link between prefill and decode engines is given, and there are no such engines")
    alone = not fleet.pools and not fleet.prefill and fleet.engines == 1
    if alone and fleet.signal_delay_s != 0:
        raise SpecError("a delay of signals to the router is given, and there is one engine, without a router")
    if fleet.kv_events and (alone or fleet.prefix_caching == "off"):
        what = "of one engine, which has no router" if alone else "of engines that cache no prefixes"
        raise SpecError(f"KV events {what}; leave kv_events (--kv-events) out")
    _check_startup(fleet, spec, alone)
    _check_role_change(fleet, spec)
    total = most_engines(fleet)
    for text in fleet.incidents:
        if values.incident_of(text).engine >= total:
            raise SpecError(f"an incident of {text!r}; engines are numbered 0 to {total - 1}")


def _check_startup(fleet: Fleet, spec: ServingSpec, alone: bool) -> None:
    if fleet.startup_s is None:
        if fleet.started != 0:
            raise SpecError("started (--started) is given, and engines are always up; give startup_s (--startup)")
        return
    if alone:
        raise SpecError("a start-up time is given for one engine, which no scaler starts; give 2 engines or more")
    if spec.policies.scaler is None:
        raise SpecError("engines have a start-up time, and nothing starts them; name a scaler (--scaler)")


def _check_role_change(fleet: Fleet, spec: ServingSpec) -> None:
    if fleet.role_change_s is None:
        return
    if not fleet.is_disaggregated:
        raise SpecError("a time to change roles is given, and engines have no roles; give --prefill P --decode D")
    if spec.policies.scaler is None:
        raise SpecError("engines may change their roles, and nothing decides when; name a scaler (--scaler)")
    if fleet.prefix_caching == "on" or fleet.prefix_store_tokens != 0 or fleet.lockstep != 1:
        raise SpecError(
            "engines that change their roles are not simulated with prefix caching, a prefix store or lockstep; leave "
            "out role_change_s (--role-change), or the other"
        )


def most_engines(fleet: Fleet) -> int:
    """Return the largest number of engines that a fleet can have."""
    if fleet.pools:
        return sum(pool.engines for pool in fleet.pools)
    engines, prefill, decode = (
        max(number) if isinstance(number, tuple) else number.high if isinstance(number, Range) else number
        for number in (fleet.engines, fleet.prefill, fleet.decode)
    )
    return int(prefill + decode) or int(engines)

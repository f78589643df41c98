"""Options of commands with a router before live engines: `servegym proxy` and `servegym endpoint-picker`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servegym.cli import options
from servegym.errors import ServegymError

if TYPE_CHECKING:
    from servegym.adapters.routing.assumptions import Assumptions

ADDRESSES, CLIENTS, LIMITS, TIMES = "Addresses", "Clients", "Limits", "Times"

Backend = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="An engine, http://HOST:PORT. Repeatable.", rich_help_panel=ADDRESSES),
]
BackendsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file of further engines, one address a line, read again every --discovery-time.",
        rich_help_panel=ADDRESSES,
    ),
]
BackendsDns = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:PORT",
        help="A DNS name whose addresses are further engines, looked up every --discovery-time.",
        rich_help_panel=ADDRESSES,
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="ARTIFACT",
        help="The artifact (servegym export) with the router.",
        rich_help_panel=options.WHAT,
    ),
]
RouterName = Annotated[
    str | None,
    typer.Option(
        metavar=options.SCHEDULER_METAVAR,
        help="A router by name, with --device, instead of --policy.",
        rich_help_panel=options.WHAT,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="PROFILE",
        help="The latency profile of the engines, instead of the artifact's.",
        rich_help_panel=options.WHAT,
    ),
]
PrefixCacheTokens = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Tokens of shared prefixes that an engine can cache, for routers that use it; 0: none.",
        show_default="all of its KV memory",
        rich_help_panel=options.WHAT,
    ),
]
Host = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="Address to listen on; by default only this machine can connect.",
        rich_help_panel=ADDRESSES,
    ),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(metavar="PEM", help="Speak TLS with this certificate (chain).", rich_help_panel=ADDRESSES),
]
TlsKey = Annotated[Path | None, typer.Option(metavar="PEM", help="The certificate's key.", rich_help_panel=ADDRESSES)]
RequestLogFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Append a line of JSON for each request: no prompts, no keys.", rich_help_panel=CLIENTS
    ),
]
MaxInFlight = Annotated[
    int, typer.Option(min=1, metavar="N", help="Most requests at the engines at once.", rich_help_panel=LIMITS)
]
MaxQueued = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Most requests that wait at the proxy; more are answered 429.",
        rich_help_panel=LIMITS,
    ),
]
MaxBodyMib = Annotated[
    float,
    typer.Option(
        metavar="MIB", help="Longest body of a request; a longer one is answered 413.", rich_help_panel=LIMITS
    ),
]
QueueTime = Annotated[
    float,
    typer.Option(
        "--queue-time",
        metavar="SECONDS",
        help="Longest wait at the proxy; then the answer is 503.",
        rich_help_panel=TIMES,
    ),
]
TotalTime = Annotated[
    float,
    typer.Option("--total-time", metavar="SECONDS", help="Timeout of a whole request.", rich_help_panel=TIMES),
]
HealthTime = Annotated[
    float,
    typer.Option(
        "--health-time", metavar="SECONDS", help="Interval of an engine's health checks.", rich_help_panel=TIMES
    ),
]
DiscoveryTime = Annotated[
    float,
    typer.Option(
        "--discovery-time",
        min=0.05,
        metavar="SECONDS",
        help="Interval at which engines are looked up again.",
        rich_help_panel=TIMES,
    ),
]
DrainNotice = Annotated[
    float,
    typer.Option(
        "--drain-notice",
        metavar="SECONDS",
        help="After SIGTERM, go on taking requests this long while /ready says no.",
        rich_help_panel=TIMES,
    ),
]
DrainTime = Annotated[
    float,
    typer.Option(
        "--drain-time",
        metavar="SECONDS",
        help="After that, time for requests in flight to end.",
        rich_help_panel=TIMES,
    ),
]
CharactersPerToken = Annotated[
    float,
    typer.Option(
        metavar="X",
        help="Characters that count as one token, of prompts that come as text.",
        rich_help_panel=options.WHAT,
    ),
]
CountByEngine = Annotated[
    bool,
    typer.Option(
        "--count-by-engine", help="Count a text's tokens by an engine's /tokenize.", rich_help_panel=options.WHAT
    ),
]


def check_named(engines: bool, policy: Path | None, router: str | None, device: str | None) -> None:
    """Raise ServegymError unless there are engines (backends, a file or a name of DNS), and one policy for them."""
    if not engines:
        raise ServegymError("name at least one engine: --backend http://127.0.0.1:8001")
    if (policy is None) == (router is None):
        raise ServegymError("say by which policy: --policy ARTIFACT, or --router NAME with --device PROFILE")
    if router is not None and device is None:
        raise ServegymError("--router goes with --device PROFILE: what the engines' batches are believed to take")


def not_installed(error: ModuleNotFoundError, what: str, extra: str) -> ServegymError:
    """What to install, where a package is missing. Raises `error` again where that is a part of servegym."""
    package = (error.name or "servegym").partition(".")[0]
    if package == "servegym":
        raise error
    return ServegymError(f"{what} takes packages that are not installed ({package}): pip install 'servegym[{extra}]'")


def loading(
    policy: Path | None, router: str | None, device: str | None, prefix_cache_tokens: int | None
) -> Callable[[], Assumptions]:
    """A function that reads the policy, and that can be called again."""
    from servegym.adapters.routing.assumptions import Assumptions

    def load() -> Assumptions:
        from servegym.baselines import registry

        if policy is not None:
            assumptions = Assumptions.of_artifact(policy, device)
        else:
            assumptions = Assumptions.of(registry.router(str(router)), None, None, device)
        return dataclasses.replace(assumptions, prefix_cache_tokens=prefix_cache_tokens)

    return load

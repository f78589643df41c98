"""`servegym proxy`: an OpenAI-compatible endpoint before several engines, routed by a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servegym.cli import options
from servegym.cli.interruption import Interrupted
from servegym.cli.output import progress_console
from servegym.errors import ServegymError

EXAMPLES = """\
[bold]Examples[/bold]

servegym proxy --policy policy.json --backend http://127.0.0.1:8001 --backend http://127.0.0.1:8002

servegym proxy --router gorouting --device h100-llama3-8b --backend http://10.0.0.1:8000 --backend http://10.0.0.2:8000

servegym proxy --router kv-aware --device h100-llama3-8b --backend http://10.0.0.1:8000 --backend http://10.0.0.2:8000

servegym proxy --policy policy.json --backend http://127.0.0.1:8001 --host 0.0.0.0 --port 9000 --max-in-flight 256
"""
EXTRA = "serve"
ADDRESSES, LIMITS, TIMES = "Addresses", "Limits", "Times"


def proxy(
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An engine, http://HOST:PORT. Repeatable.", rich_help_panel=ADDRESSES),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="ARTIFACT",
            help="The policy's file (servegym export); it has a router.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(
            metavar=options.SCHEDULER_METAVAR,
            help="A router instead of a file's, with --device.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="A latency profile of the engines, instead of what the file says.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    kept_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="KV that each engine keeps for prompts that begin alike, for routers that look at it; 0: none.",
            show_default="all of its KV memory",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Where it listens; others than this machine only if said so.",
            rich_help_panel=ADDRESSES,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="0: any free one.", rich_help_panel=ADDRESSES)
    ] = 8000,
    max_in_flight: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests at the engines at once.", rich_help_panel=LIMITS)
    ] = 1024,
    max_queued: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Requests that wait for that; more are answered 429.", rich_help_panel=LIMITS
        ),
    ] = 1024,
    max_body_mib: Annotated[
        float, typer.Option(metavar="MIB", help="Longest request, else 413.", rich_help_panel=LIMITS)
    ] = 4.0,
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Engines tried after the first, while nothing has been streamed.",
            rich_help_panel=LIMITS,
        ),
    ] = 2,
    queue_s: Annotated[
        float,
        typer.Option(
            "--queue-time", metavar="SECONDS", help="Longest wait at the proxy, then 503.", rich_help_panel=TIMES
        ),
    ] = 30.0,
    connect_s: Annotated[
        float, typer.Option("--connect-time", metavar="SECONDS", help="For a connection.", rich_help_panel=TIMES)
    ] = 10.0,
    first_token_s: Annotated[
        float,
        typer.Option(
            "--first-token-time", metavar="SECONDS", help="For the first byte of a stream.", rich_help_panel=TIMES
        ),
    ] = 300.0,
    between_tokens_s: Annotated[
        float,
        typer.Option(
            "--between-tokens-time", metavar="SECONDS", help="Between bytes of a stream.", rich_help_panel=TIMES
        ),
    ] = 60.0,
    total_s: Annotated[
        float, typer.Option("--total-time", metavar="SECONDS", help="For a request.", rich_help_panel=TIMES)
    ] = 3600.0,
    health_s: Annotated[
        float,
        typer.Option("--health-time", metavar="SECONDS", help="Between checks of an engine.", rich_help_panel=TIMES),
    ] = 2.0,
    characters_per_token: Annotated[
        float,
        typer.Option(metavar="X", help="Of prompts that come as text.", rich_help_panel=options.WHAT),
    ] = 4.0,
    count_by_engine: Annotated[
        bool,
        typer.Option("--count-by-engine", help="Have an engine's /tokenize count them.", rich_help_panel=options.WHAT),
    ] = False,
) -> None:
    """Serve OpenAI's completions from several engines, each request at the one that a router policy names.

    SLOs, priority and weight of a request come in its vllm_xargs and priority, or in headers; the policy's file says
    what others get. Nothing but the engines named here is ever called.
    """
    if not backend:
        raise ServegymError("name at least one engine: --backend http://127.0.0.1:8001")
    if (policy is None) == (router is None):
        raise ServegymError("say by which policy: --policy ARTIFACT, or --router NAME with --device PROFILE")
    try:
        from servegym.adapters.routing.assumptions import Assumptions
        from servegym.adapters.routing.server import listen, make_server
        from servegym.adapters.routing.settings import ProxySettings, checked_url
    except ModuleNotFoundError as error:
        package = (error.name or "servegym").partition(".")[0]
        if package == "servegym":
            raise
        raise ServegymError(
            f"a proxy takes packages that are not installed ({package}): pip install 'servegym[{EXTRA}]'"
        ) from None
    urls = [checked_url(url) for url in backend]
    settings = ProxySettings(
        host=host, port=port, max_body_bytes=int(max_body_mib * 2**20), max_in_flight=max_in_flight,
        max_queued=max_queued, retries=retries, queue_s=queue_s, connect_s=connect_s, first_token_s=first_token_s,
        between_tokens_s=between_tokens_s, total_s=total_s, health_s=health_s,
        characters_per_token=characters_per_token, count_by_engine=count_by_engine,
    )  # fmt: skip
    if policy is not None:
        assumptions = Assumptions.of_artifact(policy, device)
    else:
        from servegym.baselines import registry

        if device is None:
            raise ServegymError("--router goes with --device PROFILE: what the engines' batches are believed to take")
        assumptions = Assumptions.of(registry.router(str(router)), None, None, device)
    live = assumptions.live(urls, kept_tokens)
    bound = listen(settings)
    server = make_server(live, urls, settings, assumptions.defaults)
    address = f"http://{host}:{bound.getsockname()[1]}"
    progress_console().print(f"{assumptions.router.label} before {len(urls)} engines at {address}; Ctrl-C ends it")
    try:
        server.run([bound])
    except KeyboardInterrupt:
        raise Interrupted("requests in flight were given 30 s to end") from None

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

servegym proxy --policy policy.json --backends-file engines.txt --clients clients.yaml --request-log requests.jsonl

servegym proxy --policy policy.json --backends-dns engines.svc:8000 --tls-certificate cert.pem --tls-key key.pem
"""
EXTRA = "serve"
ADDRESSES, CLIENTS, LIMITS, TIMES = "Addresses", "Clients", "Limits", "Times"


def proxy(
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An engine, http://HOST:PORT. Repeatable.", rich_help_panel=ADDRESSES),
    ] = None,
    backends_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file of further engines, one address a line, read again every --discovery-time.",
            rich_help_panel=ADDRESSES,
        ),
    ] = None,
    backends_dns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:PORT",
            help="A DNS name whose addresses are further engines, looked up every --discovery-time.",
            rich_help_panel=ADDRESSES,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="ARTIFACT",
            help="The artifact (servegym export) with the router.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(
            metavar=options.SCHEDULER_METAVAR,
            help="A router by name, with --device, instead of --policy.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="The latency profile of the engines, instead of the artifact's.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    prefix_cache_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Tokens of shared prefixes that an engine can cache, for routers that use it; 0: none.",
            show_default="all of its KV memory",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address to listen on; by default only this machine can connect.",
            rich_help_panel=ADDRESSES,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, metavar="PORT", help="Port to listen on; 0: any free one.", rich_help_panel=ADDRESSES
        ),
    ] = 8000,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Speak TLS with this certificate (chain).", rich_help_panel=ADDRESSES),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="PEM", help="The certificate's key.", rich_help_panel=ADDRESSES)
    ] = None,
    clients: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="API keys of clients and their limits (YAML).", rich_help_panel=CLIENTS),
    ] = None,
    request_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append a line of JSON for each request: no prompts, no keys.", rich_help_panel=CLIENTS
        ),
    ] = None,
    max_in_flight: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most requests at the engines at once.", rich_help_panel=LIMITS)
    ] = 1024,
    max_queued: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Most requests that wait at the proxy; more are answered 429.",
            rich_help_panel=LIMITS,
        ),
    ] = 1024,
    max_body_mib: Annotated[
        float,
        typer.Option(
            metavar="MIB", help="Longest body of a request; a longer one is answered 413.", rich_help_panel=LIMITS
        ),
    ] = 4.0,
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="How many more engines are tried while nothing has been streamed.",
            rich_help_panel=LIMITS,
        ),
    ] = 2,
    queue_s: Annotated[
        float,
        typer.Option(
            "--queue-time",
            metavar="SECONDS",
            help="Longest wait at the proxy; then the answer is 503.",
            rich_help_panel=TIMES,
        ),
    ] = 30.0,
    connect_s: Annotated[
        float,
        typer.Option(
            "--connect-time", metavar="SECONDS", help="Timeout of a connection to an engine.", rich_help_panel=TIMES
        ),
    ] = 10.0,
    first_token_s: Annotated[
        float,
        typer.Option(
            "--first-token-time",
            metavar="SECONDS",
            help="Timeout of the first byte of an answer.",
            rich_help_panel=TIMES,
        ),
    ] = 300.0,
    between_tokens_s: Annotated[
        float,
        typer.Option(
            "--between-tokens-time",
            metavar="SECONDS",
            help="Timeout between two bytes of an answer.",
            rich_help_panel=TIMES,
        ),
    ] = 60.0,
    total_s: Annotated[
        float,
        typer.Option("--total-time", metavar="SECONDS", help="Timeout of a whole request.", rich_help_panel=TIMES),
    ] = 3600.0,
    health_s: Annotated[
        float,
        typer.Option(
            "--health-time", metavar="SECONDS", help="Interval of an engine's health checks.", rich_help_panel=TIMES
        ),
    ] = 2.0,
    discovery_s: Annotated[
        float,
        typer.Option(
            "--discovery-time",
            min=0.05,
            metavar="SECONDS",
            help="Interval at which engines are looked up again.",
            rich_help_panel=TIMES,
        ),
    ] = 2.0,
    drain_notice_s: Annotated[
        float,
        typer.Option(
            "--drain-notice",
            metavar="SECONDS",
            help="After SIGTERM, go on taking requests this long while /ready says no.",
            rich_help_panel=TIMES,
        ),
    ] = 0.0,
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain-time",
            metavar="SECONDS",
            help="After that, time for requests in flight to end.",
            rich_help_panel=TIMES,
        ),
    ] = 30.0,
    characters_per_token: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Characters that count as one token, of prompts that come as text.",
            rich_help_panel=options.WHAT,
        ),
    ] = 4.0,
    count_by_engine: Annotated[
        bool,
        typer.Option(
            "--count-by-engine", help="Count a text's tokens by an engine's /tokenize.", rich_help_panel=options.WHAT
        ),
    ] = False,
) -> None:
    """Serve OpenAI's completions from several engines, each request at the one that a router policy names.

    SLOs, priority and weight of a request come in its vllm_xargs and priority, or in headers; the policy's file says
    what others get. Nothing but the engines named here is ever called. SIGHUP: policy and clients are read anew.

    From the environment: SERVEGYM_API_KEY, a key that clients need; SERVEGYM_ENGINE_KEY, one that engines get;
    SERVEGYM_ADMIN_KEY, with which the policy can be changed at /admin/policy.
    """
    if not (backend or backends_file or backends_dns):
        raise ServegymError("name at least one engine: --backend http://127.0.0.1:8001")
    if (policy is None) == (router is None):
        raise ServegymError("say by which policy: --policy ARTIFACT, or --router NAME with --device PROFILE")
    try:
        from servegym.adapters.routing.assumptions import Assumptions
        from servegym.adapters.routing.discovery import DnsSource, FileSource, Source, urls_of
        from servegym.adapters.routing.operation import Operation
        from servegym.adapters.routing.request_log import RequestLog
        from servegym.adapters.routing.server import listen, make_server
        from servegym.adapters.routing.settings import ProxySettings, checked_url
    except ModuleNotFoundError as error:
        package = (error.name or "servegym").partition(".")[0]
        if package == "servegym":
            raise
        raise ServegymError(
            f"a proxy takes packages that are not installed ({package}): pip install 'servegym[{EXTRA}]'"
        ) from None
    import asyncio
    import dataclasses

    fixed = [checked_url(url) for url in backend or []]
    sources: list[Source] = [FileSource(backends_file)] if backends_file else []
    if backends_dns:
        sources.append(DnsSource(backends_dns))
    urls = asyncio.run(urls_of(fixed, sources))
    settings = ProxySettings(
        host=host, port=port, max_body_bytes=int(max_body_mib * 2**20), max_in_flight=max_in_flight,
        max_queued=max_queued, retries=retries, queue_s=queue_s, connect_s=connect_s, first_token_s=first_token_s,
        between_tokens_s=between_tokens_s, total_s=total_s, health_s=health_s,
        characters_per_token=characters_per_token, count_by_engine=count_by_engine, drain_notice_s=drain_notice_s,
        drain_s=drain_s, certificate=tls_certificate, certificate_key=tls_key,
    )  # fmt: skip
    if router is not None and device is None:
        raise ServegymError("--router goes with --device PROFILE: what the engines' batches are believed to take")

    def load() -> Assumptions:
        from servegym.baselines import registry

        if policy is not None:
            assumptions = Assumptions.of_artifact(policy, device)
        else:
            assumptions = Assumptions.of(registry.router(str(router)), None, None, device)
        return dataclasses.replace(assumptions, prefix_cache_tokens=prefix_cache_tokens)

    assumptions = load()
    operation = Operation.of(
        clients,
        urls=fixed,
        sources=sources,
        look_s=discovery_s,
        load=load,
        device=device,
        prefix_cache_tokens=prefix_cache_tokens,
    )
    log = RequestLog(request_log) if request_log else None
    bound = listen(settings)
    server = make_server(assumptions, urls, settings, operation, log)
    address = f"{'http' if tls_key is None else 'https'}://{host}:{bound.getsockname()[1]}"
    console = progress_console()
    console.print(f"{assumptions.router.label} before {len(urls)} engines at {address}; Ctrl-C ends it")
    if not operation.clients.all and host not in ("127.0.0.1", "::1", "localhost"):
        console.print("there are no API keys: whoever reaches this address may use the engines (--clients)")
    try:
        server.run([bound])
    except KeyboardInterrupt:
        raise Interrupted(f"requests in flight were given {drain_s:g} s to end") from None
    finally:
        if log is not None:
            log.close()

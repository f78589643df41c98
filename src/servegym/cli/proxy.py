"""`servegym proxy`: an OpenAI-compatible endpoint before several engines, routed by a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servegym.cli import live_options
from servegym.cli.ending import Interrupted
from servegym.cli.output import progress_console

EXAMPLES = """\
[bold]Examples[/bold]

servegym proxy --policy policy.json --backend http://127.0.0.1:8001 --backend http://127.0.0.1:8002

servegym proxy --router gorouting --device h100-llama3-8b --backend http://10.0.0.1:8000 --backend http://10.0.0.2:8000

servegym proxy --router kv-aware --device h100-llama3-8b --backend http://10.0.0.1:8000 --backend http://10.0.0.2:8000

servegym proxy --policy policy.json --backends-file engines.txt --clients clients.yaml --request-log requests.jsonl

servegym proxy --policy policy.json --backends-dns engines.svc:8000 --tls-certificate cert.pem --tls-key key.pem
"""
EXTRA = "serve"


def proxy(
    backend: live_options.Backend = None,
    backends_file: live_options.BackendsFile = None,
    backends_dns: live_options.BackendsDns = None,
    policy: live_options.PolicyFile = None,
    router: live_options.RouterName = None,
    device: live_options.Device = None,
    prefix_cache_tokens: live_options.PrefixCacheTokens = None,
    host: live_options.Host = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Port to listen on; 0: any free one.",
            rich_help_panel=live_options.ADDRESSES,
        ),
    ] = 8000,
    tls_certificate: live_options.TlsCertificate = None,
    tls_key: live_options.TlsKey = None,
    clients: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="API keys of clients and their limits (YAML).", rich_help_panel=live_options.CLIENTS
        ),
    ] = None,
    request_log: live_options.RequestLogFile = None,
    max_in_flight: live_options.MaxInFlight = 1024,
    max_queued: live_options.MaxQueued = 1024,
    max_body_mib: live_options.MaxBodyMib = 4.0,
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="How many more engines are tried while nothing has been streamed.",
            rich_help_panel=live_options.LIMITS,
        ),
    ] = 2,
    queue_s: live_options.QueueTime = 30.0,
    connect_s: Annotated[
        float,
        typer.Option(
            "--connect-time",
            metavar="SECONDS",
            help="Timeout of a connection to an engine.",
            rich_help_panel=live_options.TIMES,
        ),
    ] = 10.0,
    first_token_s: Annotated[
        float,
        typer.Option(
            "--first-token-time",
            metavar="SECONDS",
            help="Timeout of the first byte of an answer.",
            rich_help_panel=live_options.TIMES,
        ),
    ] = 300.0,
    between_tokens_s: Annotated[
        float,
        typer.Option(
            "--between-tokens-time",
            metavar="SECONDS",
            help="Timeout between two bytes of an answer.",
            rich_help_panel=live_options.TIMES,
        ),
    ] = 60.0,
    total_s: live_options.TotalTime = 3600.0,
    health_s: live_options.HealthTime = 2.0,
    discovery_s: live_options.DiscoveryTime = 2.0,
    drain_notice_s: live_options.DrainNotice = 0.0,
    drain_s: live_options.DrainTime = 30.0,
    characters_per_token: live_options.CharactersPerToken = 4.0,
    count_by_engine: live_options.CountByEngine = False,
) -> None:
    """Serve OpenAI's completions from several engines, each request at the one that a router policy names.

    SLOs, priority and weight of a request come in its vllm_xargs and priority, or in headers; the policy's file says
    what others get. Nothing but the engines named here is ever called. SIGHUP: policy and clients are read anew.

    From the environment: SERVEGYM_API_KEY, a key that clients need; SERVEGYM_ENGINE_KEY, one that engines get;
    SERVEGYM_ADMIN_KEY, with which the policy can be changed at /admin/policy.
    """
    live_options.check_named(bool(backend or backends_file or backends_dns), policy, router, device)
    try:
        from servegym.adapters.routing.discovery import DnsSource, FileSource, Source, urls_of
        from servegym.adapters.routing.operation import Operation
        from servegym.adapters.routing.request_log import RequestLog
        from servegym.adapters.routing.server import listen, make_server
        from servegym.adapters.routing.settings import ProxySettings, checked_url
    except ModuleNotFoundError as error:
        raise live_options.not_installed(error, "a proxy", EXTRA) from None
    import asyncio

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
    load = live_options.loading(policy, router, device, prefix_cache_tokens)
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

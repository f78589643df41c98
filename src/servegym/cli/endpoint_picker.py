"""`servegym endpoint-picker`: a gateway asks it which engine gets a request (Gateway API Inference Extension)."""

from __future__ import annotations

from typing import Annotated

import typer

from servegym.cli import live_options
from servegym.cli.ending import Interrupted
from servegym.cli.output import progress_console
from servegym.errors import ServegymError

EXAMPLES = """\
[bold]Examples[/bold]

servegym endpoint-picker --router predicted-cost --device h100-llama3-8b --backend http://10.0.0.1:8000 --backend \
http://10.0.0.2:8000

servegym endpoint-picker --router learned:session-fleet --device h100-llama3-8b --backends-dns engines:8000 --host \
0.0.0.0

servegym endpoint-picker --policy policy.json --backends-file engines.txt --tls-certificate cert.pem --tls-key key.pem
"""
EXTRA = "gateway"


def endpoint_picker(
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
            help="Port that the gateway calls (gRPC); 0: any free one.",
            rich_help_panel=live_options.ADDRESSES,
        ),
    ] = 9002,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Port of /metrics, /health and /ready (HTTP); 0: any free one.",
            rich_help_panel=live_options.ADDRESSES,
        ),
    ] = 9090,
    tls_certificate: live_options.TlsCertificate = None,
    tls_key: live_options.TlsKey = None,
    request_log: live_options.RequestLogFile = None,
    max_in_flight: live_options.MaxInFlight = 1024,
    max_queued: live_options.MaxQueued = 1024,
    max_body_mib: live_options.MaxBodyMib = 4.0,
    queue_s: live_options.QueueTime = 30.0,
    total_s: live_options.TotalTime = 3600.0,
    health_s: live_options.HealthTime = 2.0,
    discovery_s: live_options.DiscoveryTime = 2.0,
    drain_notice_s: live_options.DrainNotice = 0.0,
    drain_s: live_options.DrainTime = 30.0,
    characters_per_token: live_options.CharactersPerToken = 4.0,
    count_by_engine: live_options.CountByEngine = False,
) -> None:
    """Tell a gateway which engine gets each request: the one that a router policy names.

    It is an Endpoint Picker of the Gateway API Inference Extension: an Envoy that has it as external processor
    (ext_proc) sends it each request, and each answer as it streams by. Requests say SLOs, priority and weight as they
    do before `servegym proxy`. SIGHUP: the policy is read anew.

    From the environment: SERVEGYM_ENGINE_KEY, a key for --count-by-engine; SERVEGYM_ADMIN_KEY, with which the policy
    can be changed at /admin/policy.
    """
    live_options.check_named(bool(backend or backends_file or backends_dns), policy, router, device)
    try:
        from servegym.adapters.gateway.endpoints import Addressed, endpoint_of
        from servegym.adapters.gateway.server import make_picker
        from servegym.adapters.routing.discovery import DnsSource, FileSource, Source, urls_of
        from servegym.adapters.routing.operation import Operation
        from servegym.adapters.routing.request_log import RequestLog
        from servegym.adapters.routing.server import listen
        from servegym.adapters.routing.settings import ProxySettings
    except ModuleNotFoundError as error:
        raise live_options.not_installed(error, "an endpoint picker", EXTRA) from None
    import asyncio
    import dataclasses

    fixed = backend or []
    for url in fixed:
        endpoint_of(url)
    sources: list[Source] = [Addressed(FileSource(backends_file))] if backends_file else []
    if backends_dns:
        sources.append(Addressed(DnsSource(backends_dns)))
    urls = asyncio.run(urls_of([url.rstrip("/") for url in fixed], sources))
    settings = ProxySettings(
        host=host, port=port, max_body_bytes=int(max_body_mib * 2**20), max_in_flight=max_in_flight,
        max_queued=max_queued, queue_s=queue_s, total_s=total_s, health_s=health_s,
        characters_per_token=characters_per_token, count_by_engine=count_by_engine, drain_notice_s=drain_notice_s,
        drain_s=drain_s, certificate=tls_certificate, certificate_key=tls_key,
    )  # fmt: skip
    load = live_options.loading(policy, router, device, prefix_cache_tokens)
    assumptions = load()
    operation = Operation.of(
        None, urls=fixed, sources=sources, look_s=discovery_s, load=load, device=device,
        prefix_cache_tokens=prefix_cache_tokens,
    )  # fmt: skip
    log = RequestLog(request_log) if request_log else None
    if port == metrics_port != 0:
        raise ServegymError(f"--port and --metrics-port are both {port}; they should differ")
    listen(settings).close()  # an address that cannot be used is an error here, and not once everything runs
    bound = listen(dataclasses.replace(settings, port=metrics_port))
    console = progress_console()

    def started(used: int) -> None:
        at = f"grpc{'' if tls_key is None else 's'}://{host}:{used}"
        console.print(f"{assumptions.router.label} before {len(urls)} engines at {at}; Ctrl-C ends it")
        console.print(f"metrics at http://{host}:{bound.getsockname()[1]}/metrics")

    server = make_picker(assumptions, urls, settings, operation, log, started)
    try:
        server.run([bound])
        if not server.started:  # it has logged why
            raise ServegymError(f"the endpoint picker did not start at {host}:{port}")
    except KeyboardInterrupt:
        raise Interrupted(f"requests in flight were given {drain_s:g} s to end") from None
    finally:
        if log is not None:
            log.close()

"""`servegym endpoint-picker`: chooses engines for a gateway (Gateway API Inference Extension)."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from servegym.cli import live_options
from servegym.cli.options import option
from servegym.cli.output import progress_console
from servegym.cli.spec_options import option_set
from servegym.errors import ServegymError
from servegym.extras import needs

EXAMPLES = """\
[bold]Examples[/bold]

servegym endpoint-picker --router predicted-cost --device h100-llama3-8b --backend http://10.0.0.1:8000 --backend \
http://10.0.0.2:8000

servegym endpoint-picker --router learned:session-fleet --device h100-llama3-8b --backends-dns engines:8000 --host \
0.0.0.0

servegym endpoint-picker --policy policy.json --backends-file engines.txt --tls-certificate cert.pem --tls-key key.pem
"""
EXTRA = "gateway"


@option_set(live_options.Live, "live")
def endpoint_picker(
    live: live_options.Live,
    port: Annotated[
        int,
        option(
            "PORT",
            "Port that the gateway calls (gRPC); 0: any free one.",
            live_options.ADDRESSES,
            "--port",
            min=0,
            max=65535,
        ),
    ] = 9002,
    metrics_port: Annotated[
        int,
        option(
            "PORT",
            "Port of /metrics, /health and /ready (HTTP); 0: any free one.",
            live_options.ADDRESSES,
            min=0,
            max=65535,
        ),
    ] = 9090,
) -> None:
    """Choose the engine for each request of a gateway by a router policy.

    It is an Endpoint Picker of the Gateway API Inference Extension: an Envoy that has it as external processor
    (ext_proc) sends it each request, and each answer while it streams. Requests carry SLOs, priority and weight as for
    `servegym proxy`. SIGHUP makes it read the policy again if its file has changed.

    Environment variables: SERVEGYM_ENGINE_KEY, the engines' key, for --count-by-engine; SERVEGYM_ADMIN_KEY, the key for
    changing the policy at /admin/policy.
    """
    live.check()
    with needs("an endpoint picker", EXTRA):
        from servegym.adapters.gateway.server import make_picker
        from servegym.adapters.routing.server import listen
    if port == metrics_port != 0:
        raise ServegymError(f"--port and --metrics-port are both {port}; they should differ")
    serving = live.serving(port, addressed=True)
    listen(serving.settings).close()  # an address that cannot be used is an error now, before everything runs
    bound = listen(dataclasses.replace(serving.settings, port=metrics_port))
    console = progress_console()

    def started(used: int) -> None:
        at = f"grpc{'' if live.tls_key is None else 's'}://{live.host}:{used}"
        console.print(f"{serving.in_words} at {at}; Ctrl-C ends it")
        console.print(f"metrics at http://{live.host}:{bound.getsockname()[1]}/metrics")

    server = make_picker(*serving, started)
    with serving.until_interrupted():
        server.run([bound])
        if not server.started:  # it has logged why
            raise ServegymError(f"the endpoint picker did not start at {live.host}:{port}")

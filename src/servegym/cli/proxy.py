"""`servegym proxy`: an OpenAI-compatible endpoint that routes to several engines by a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from servegym.cli import live_options
from servegym.cli.options import option
from servegym.cli.output import progress_console
from servegym.cli.spec_options import option_set
from servegym.extras import needs

EXAMPLES = """\
[bold]Examples[/bold]

servegym proxy --policy policy.json --backend http://127.0.0.1:8001 --backend http://127.0.0.1:8002

servegym proxy --router gorouting --device h100-llama3-8b --backend http://10.0.0.1:8000 --backend http://10.0.0.2:8000

servegym proxy --router kv-aware --device h100-llama3-8b --backend http://10.0.0.1:8000 --backend http://10.0.0.2:8000

servegym proxy --policy policy.json --backends-file engines.txt --clients clients.yaml --request-log requests.jsonl

servegym proxy --policy policy.json --backends-dns engines.svc:8000 --tls-certificate cert.pem --tls-key key.pem
"""
EXTRA = "serve"


@option_set(live_options.Live, "live")
def proxy(
    live: live_options.Live,
    port: Annotated[
        int, option("PORT", "Port to listen on; 0: any free one.", live_options.ADDRESSES, "--port", min=0, max=65535)
    ] = 8000,
    clients: Annotated[
        Path | None, option("FILE", "API keys of clients and their limits (YAML).", live_options.CLIENTS)
    ] = None,
    retries: Annotated[
        int, option("N", "How many more engines are tried while nothing has been streamed.", live_options.LIMITS, min=0)
    ] = 2,
    connect_s: Annotated[
        float, option("SECONDS", "Timeout of a connection to an engine.", live_options.TIMES, "--connect-time")
    ] = 10.0,
    first_token_s: Annotated[
        float, option("SECONDS", "Timeout of the first byte of an answer.", live_options.TIMES, "--first-token-time")
    ] = 300.0,
    between_tokens_s: Annotated[
        float, option("SECONDS", "Timeout between two bytes of an answer.", live_options.TIMES, "--between-tokens-time")
    ] = 60.0,
) -> None:
    """Serve OpenAI's completions from several engines; a router policy chooses the engine of each request.

    SLOs, priority and weight of a request come in its vllm_xargs and priority, or in headers; the policy's file has the
    defaults. It connects to the engines named here and to nothing else. SIGHUP makes it read clients again, the
    policy if its file has changed, and reopen the log.

    Environment variables: SERVEGYM_API_KEY, a key that clients have to send; SERVEGYM_ENGINE_KEY, a key sent to
    engines; SERVEGYM_ADMIN_KEY, the key for changing the policy at /admin/policy.
    """
    live.check()
    with needs("a proxy", EXTRA):
        from servegym.adapters.routing.server import listen, make_server
    serving = live.serving(
        port, clients, retries=retries, connect_s=connect_s, first_token_s=first_token_s,
        between_tokens_s=between_tokens_s,
    )  # fmt: skip
    bound = listen(serving.settings)
    server = make_server(*serving)
    address = f"{'http' if live.tls_key is None else 'https'}://{live.host}:{bound.getsockname()[1]}"
    console = progress_console()
    console.print(f"{serving.in_words} at {address}; Ctrl-C ends it")
    if not serving.operation.clients.all and live.host not in live_options.LOOPBACK:
        console.print("there are no API keys: anyone that reaches this address can use the engines (--clients)")
    with serving.until_interrupted():
        server.run([bound])

"""Options shared by `servegym proxy` and `servegym endpoint-picker`, the commands that route for live engines."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from servegym.cli import options
from servegym.cli.ending import Interrupted
from servegym.cli.options import flag, option
from servegym.errors import ServegymError

if TYPE_CHECKING:
    from servegym.adapters.routing.assumptions import Assumptions
    from servegym.adapters.routing.operation import Operation
    from servegym.adapters.routing.request_log import RequestLog
    from servegym.adapters.routing.settings import ProxySettings

LOOPBACK, ANY = ("127.0.0.1", "::1", "localhost"), ("0.0.0.0", "::")
ADDRESSES, CLIENTS, LIMITS, TIMES = "Addresses", "Clients", "Limits", "Times"


class Serving(typing.NamedTuple):
    """Everything that a router of live engines needs."""

    assumptions: Assumptions
    urls: list[str]
    settings: ProxySettings
    operation: Operation
    log: RequestLog | None

    @property
    def in_words(self) -> str:
        """The router and the number of its engines, in words."""
        return f"{self.assumptions.router.label} before {len(self.urls)} engine{'' if len(self.urls) == 1 else 's'}"

    @contextlib.contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Convert Ctrl-C inside the with block to Interrupted, and close the log at the end."""
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(f"requests in flight, if any, had up to {self.settings.drain_s:g} s to end") from None
        finally:
            if self.log is not None:
                self.log.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Live:
    """The options of both commands with their defaults, and the checks of their combinations."""

    backend: Annotated[
        list[str] | None,
        option(
            "URL[=PROFILE]",
            "An engine, http://HOST:PORT, perhaps with a latency profile of its own. Repeatable.",
            ADDRESSES,
        ),
    ] = None
    backends_file: Annotated[
        Path | None,
        option("FILE", "A file of further engines, one address a line, read again every --discovery-time.", ADDRESSES),
    ] = None
    backends_dns: Annotated[
        str | None,
        option(
            "NAME:PORT", "A DNS name whose addresses are further engines, looked up every --discovery-time.", ADDRESSES
        ),
    ] = None
    policy: Annotated[
        Path | None, option("ARTIFACT", "The artifact (servegym export) with the router.", options.WHAT)
    ] = None
    router: Annotated[
        str | None,
        option(options.SCHEDULER_METAVAR, "A router by name, instead of --policy; needs --device.", options.WHAT),
    ] = None
    device: Annotated[
        str | None, option("PROFILE", "The latency profile of the engines, instead of the artifact's.", options.WHAT)
    ] = None
    prefix_cache_tokens: Annotated[
        int | None,
        option(
            "N",
            "Tokens of shared prefixes that an engine can cache, for routers that use it; 0: none.",
            options.WHAT,
            min=0,
            show_default="all of its KV memory",
        ),
    ] = None
    kv_events_port: Annotated[
        int,
        option(
            "PORT",
            "The port of each engine's host where vLLM publishes KV events, the blocks that it stores and removes.",
            options.WHAT,
            min=0,
            max=65535,
            show_default="they are not read",
        ),
    ] = 0
    max_loras: Annotated[
        int | None,
        option(
            "N",
            "Most LoRA adapters in an engine's device memory, until it reports the number. Use it with --lora-load and "
            "--lora-activate.",
            options.WHAT,
            min=1,
            show_default="no adapters",
        ),
    ] = None
    max_cpu_loras: Annotated[int | None, options.field_option("max_cpu_loras", options.WHAT, min=1)] = None
    lora_load_s: Annotated[float | None, options.field_option("lora_load_s", options.WHAT)] = None
    lora_activate_s: Annotated[float | None, options.field_option("lora_activate_s", options.WHAT)] = None
    host: Annotated[
        str, option("HOST", "Address to listen on; by default only this machine can connect.", ADDRESSES, "--host")
    ] = "127.0.0.1"
    tls_certificate: Annotated[Path | None, option("PEM", "Speak TLS with this certificate (chain).", ADDRESSES)] = None
    tls_key: Annotated[Path | None, option("PEM", "The certificate's key.", ADDRESSES)] = None
    request_log: Annotated[
        Path | None, option("FILE", "Append a line of JSON for each request: no prompts, no keys.", CLIENTS)
    ] = None
    max_in_flight: Annotated[int, option("N", "Most requests at the engines at once.", LIMITS, min=1)] = 1024
    max_queued: Annotated[
        int, option("N", "Most requests that wait at the proxy; more are answered 429.", LIMITS, min=0)
    ] = 1024
    max_body_mib: Annotated[
        float, option("MIB", "Longest body of a request; a longer one is answered 413.", LIMITS)
    ] = 4.0
    queue_s: Annotated[
        float, option("SECONDS", "Longest wait at the proxy; then the answer is 503.", TIMES, "--queue-time")
    ] = 30.0
    total_s: Annotated[float, option("SECONDS", "Timeout of a whole request.", TIMES, "--total-time")] = 3600.0
    health_s: Annotated[float, option("SECONDS", "Interval of an engine's health checks.", TIMES, "--health-time")] = (
        2.0
    )
    discovery_s: Annotated[
        float, option("SECONDS", "Interval at which engines are looked up again.", TIMES, "--discovery-time", min=0.05)
    ] = 2.0
    drain_notice_s: Annotated[
        float,
        option(
            "SECONDS", "After SIGTERM, go on taking requests this long while /ready says no.", TIMES, "--drain-notice"
        ),
    ] = 0.0
    drain_s: Annotated[
        float, option("SECONDS", "After that, time for requests in flight to end.", TIMES, "--drain-time")
    ] = 30.0
    characters_per_token: Annotated[
        float, option("X", "Characters that count as one token, of prompts that come as text.", options.WHAT)
    ] = 4.0
    count_by_engine: Annotated[
        bool, flag("Count a text's tokens by an engine's /tokenize.", options.WHAT, "--count-by-engine")
    ] = False

    def check(self) -> None:
        """Raise ServegymError unless engines (backends, a file or a DNS name) and one policy are given."""
        if not (self.backend or self.backends_file or self.backends_dns):
            raise ServegymError("name at least one engine: --backend http://127.0.0.1:8001")
        if (self.policy is None) == (self.router is None):
            raise ServegymError("name a policy: --policy ARTIFACT, or --router NAME with --device PROFILE")
        if self.router is not None and self.default_device is None:
            raise ServegymError("--router needs --device PROFILE, the latency profile of the engines")

    @property
    def named(self) -> dict[str, str]:
        """The names of the profiles of engines that have their own, by their addresses as they are given."""
        pairs = (text.partition("=") for text in self.backend or [])
        return {url: profile for url, equals, profile in pairs if equals}

    @property
    def default_device(self) -> str | None:
        """The profile of engines without one of their own; if all have theirs, the first of these."""
        if self.device is None and self.router and len(self.named) == len(self.backend or []):
            return None if self.backends_file or self.backends_dns else next(iter(self.named.values()), None)
        return self.device

    def load(self) -> Assumptions:
        """Read the policy; called again for each reload."""
        from servegym.adapters.routing.assumptions import Assumptions
        from servegym.adapters.routing.settings import checked_url
        from servegym.baselines import registry
        from servegym.latency_models.profile import load_profile
        from servegym.scenarios.fleets import adapters_of
        from servegym.scenarios.parts import Fleet

        loras = ("max_loras", "max_cpu_loras", "lora_load_s", "lora_activate_s")
        adapters = adapters_of(Fleet(**{name: getattr(self, name) for name in loras}))
        if self.policy is not None:
            assumptions = Assumptions.of_artifact(self.policy, self.default_device)
        else:
            assumptions = Assumptions.of(registry.router(str(self.router)), self.default_device)
        profiles = {name: load_profile(name) for name in self.named.values()}
        return dataclasses.replace(
            assumptions,
            profiles={checked_url(url): profiles[name] for url, name in self.named.items()},
            prefix_cache_tokens=self.prefix_cache_tokens,
            kv_events=self.kv_events_port > 0,
            adapters=adapters,
        )

    def serving(self, port: int, clients: Path | None = None, addressed: bool = False, **more: Any) -> Serving:
        """Look up the engines and read the policy. addressed: engines need an IP address and a port. more: settings of
        one of the commands. Raises ServegymError."""
        import asyncio

        from servegym.adapters.routing.discovery import DnsSource, FileSource, Source, urls_of
        from servegym.adapters.routing.operation import Operation
        from servegym.adapters.routing.request_log import RequestLog
        from servegym.adapters.routing.settings import ProxySettings, checked_url

        fixed = [checked_url(url.partition("=")[0]) for url in self.backend or []]
        sources: list[Source] = [FileSource(self.backends_file)] if self.backends_file else []
        if self.backends_dns:
            sources.append(DnsSource(self.backends_dns))
        if addressed:
            from servegym.adapters.routing.discovery import Addressed, endpoint_of

            for url in fixed:
                endpoint_of(url)
            sources = [Addressed(source) for source in sources]
        urls = asyncio.run(urls_of(fixed, sources))
        own = {self.host, *(LOOPBACK if self.host in (*LOOPBACK, *ANY) else ())}
        for url in urls:
            if urlsplit(url).port == port and urlsplit(url).hostname in own:
                raise ServegymError(f"backend {url} is where this command listens; give it another port")
        known = {field.name for field in dataclasses.fields(ProxySettings)}
        settings = ProxySettings(
            port=port, max_body_bytes=int(self.max_body_mib * 2**20), certificate=self.tls_certificate,
            certificate_key=self.tls_key, **{k: v for k, v in vars(self).items() if k in known}, **more,
        )  # fmt: skip
        assumptions = self.load()
        files = [path for path in (self.policy, self.device and Path(self.device)) if path]
        operation = Operation.of(
            clients, urls=fixed, sources=sources, look_s=self.discovery_s, load=self.load, policy_files=files,
            device=self.default_device,
        )  # fmt: skip
        log = RequestLog(self.request_log) if self.request_log else None
        return Serving(assumptions, urls, settings, operation, log)

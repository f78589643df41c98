"""Reads a gateway's messages, and makes the answers."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from starlette.datastructures import Headers

from servegym.adapters.gateway.wire import OVERWRITE, ProcessingResponse
from servegym.adapters.routing.refusals import Refused
from servegym.adapters.routing.request_terms import HEADER

# Endpoint Picker Protocol 1.0 (Gateway API Inference Extension, proposal 004)
DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
NAMESPACE, SUBSET_NAMESPACE = "envoy.lb", "envoy.lb.subset_hint"
LONGEST_PIECE = 62 * 1024  # bytes of a body in one message; gateways take 64 KiB


def headers_of(message: Any) -> Headers:
    """Return the headers of a request or an answer, with its method, path and status as `:method` and so on."""
    pairs = [(one.key.lower(), one.raw_value or one.value.encode()) for one in message.headers.headers]
    return Headers(raw=[(key.encode("latin-1", "replace"), value) for key, value in pairs])


def with_slos(headers: Headers) -> Headers:
    """Copy the SLOs of llm-d's headers to the headers that our proxy reads, unless those are present."""
    more = []
    for name in ("ttft", "tpot"):
        own = f"{HEADER}{name}-slo-s"
        text = next((headers[one] for one in (f"x-slo-{name}-ms", f"x-llm-d-slo-{name}-ms") if one in headers), None)
        if text is None or own in headers:
            continue
        try:
            more.append((own.encode(), str(float(text) / 1000).encode()))
        except ValueError:
            more.append((own.encode(), text.encode("latin-1", "replace")))  # counted as malformed
    return Headers(raw=[*headers.raw, *more]) if more else headers


def metadata_of(message: Any, namespace: str, key: str) -> Any:
    """Return an entry of the gateway's metadata, or None."""
    for entry in message.metadata_context.filter_metadata:
        if entry.key == namespace:
            return json_format.MessageToDict(entry.value).get(key)
    return None


def subset_of(message: Any) -> set[str] | None:
    """Return the endpoints, IP:PORT, to which the gateway restricts the choice; None: no restriction."""
    value = metadata_of(message, SUBSET_NAMESPACE, SUBSET)
    if value is None:
        return None
    listed = value if isinstance(value, list) else str(value).split(",")
    return {str(one).strip() for one in listed if str(one).strip()}


def plain(kind: str) -> Any:
    """Answer that changes nothing. kind: name of the message's field, a part of a request or an answer."""
    answer = ProcessingResponse()
    getattr(answer, kind).SetInParent()
    return answer


def to_endpoint(kind: str, endpoint: str, body: bytes | None, streamed: bool) -> Any:
    """Answer that sends the request to an endpoint, IP:PORT, by a header and by metadata.

    kind: the message to answer, request_headers or request_body. body: replaces the request's. streamed: the new body
    comes in further messages.
    """
    answer = plain(kind)
    common = getattr(answer, kind).response
    common.clear_route_cache = True  # a route may depend on the header
    _set(common.header_mutation, DESTINATION, endpoint)
    if body is not None and streamed:
        _set(common.header_mutation, "content-length", str(len(body)))
    elif body is not None:
        common.body_mutation.body = body
    answer.dynamic_metadata.update({NAMESPACE: {DESTINATION: endpoint}})
    return answer


def pieces(kind: str, body: bytes, end: bool) -> list[Any]:
    """Make the messages that pass on a body in mode FULL_DUPLEX_STREAMED. end: it is the last part."""
    starts = range(0, len(body), LONGEST_PIECE) or range(1)
    answers = []
    for start in starts:
        answer = plain(kind)
        streamed = getattr(answer, kind).response.body_mutation.streamed_response
        streamed.body = body[start : start + LONGEST_PIECE]
        streamed.end_of_stream = end and start == starts[-1]
        answers.append(answer)
    return answers


def refusal(refused: Refused) -> Any:
    """Answer that gives the client an error; no engine gets the request."""
    answer = ProcessingResponse()
    response = answer.immediate_response
    response.status.code, response.body, response.details = refused.status, refused.body, f"servegym_{refused.outcome}"
    for name, value in refused.headers:
        if name != b"content-length":  # the gateway's
            _set(response.headers, name.decode(), value.decode())
    return answer


def _set(mutation: Any, name: str, value: str) -> None:
    option = mutation.set_headers.add(append_action=OVERWRITE)
    option.header.key, option.header.raw_value = name, value.encode()

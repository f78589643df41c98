"""A gateway of tests: it says what an Envoy says of a request, part by part, and keeps what it is answered."""

import json
import queue
from typing import Any

import grpc

from servegym.adapters.gateway.answers import DESTINATION, NAMESPACE
from servegym.adapters.gateway.wire import BODY_MODES, PROCESS, ProcessingRequest, ProcessingResponse
from tests.adapters.routing.fakes import LONGEST_S, event

DUPLEX = BODY_MODES.index("FULL_DUPLEX_STREAMED")


def said_to(message: Any, **headers: str) -> None:
    for name, value in headers.items():
        message.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())


class Call:
    """A request at the gateway, as it is told to the picker at this address."""

    def __init__(self, target: str, channel: Any = None):
        self.channel = channel or grpc.insecure_channel(target)
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        method = self.channel.stream_stream(
            f"/{PROCESS[0]}/{PROCESS[1]}",
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        self._answers = method(iter(self._messages.get, None), timeout=LONGEST_S)

    def say(self, message: Any) -> None:
        self._messages.put(message)

    def hear(self) -> Any:
        return next(self._answers)

    def ask(
        self,
        body: bytes,
        path: str = "/v1/completions",
        headers: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
        modes: tuple[int, int] | None = (DUPLEX, DUPLEX),
        pieces: int = 1,
        trailers: bool = False,
    ) -> Any:
        """Headers and body of a request; returns the first answer that does not just say to go on."""
        first = ProcessingRequest()
        said_to(first.request_headers, **{":method": "POST", ":path": path, **(headers or {})})
        if modes is not None:
            first.protocol_config.request_body_mode, first.protocol_config.response_body_mode = modes
        for namespace, entries in (metadata or {}).items():
            first.metadata_context.filter_metadata.add(key=namespace).value.update(entries)
        self.say(first)
        buffered = modes is not None and modes[0] != DUPLEX
        if buffered:
            answer = self.hear()
            if answer.HasField("immediate_response"):
                return answer
            assert answer.WhichOneof("response") == "request_headers" and not answer.HasField("dynamic_metadata")
        size = -(-len(body) // pieces)
        for k in range(pieces):
            part = ProcessingRequest()
            part.request_body.body = body[k * size : (k + 1) * size]
            part.request_body.end_of_stream = k == pieces - 1 and not trailers
            self.say(part)
        if trailers:
            last = ProcessingRequest()
            last.request_trailers.SetInParent()
            self.say(last)
        return self.hear()

    def body(self) -> bytes:
        """The request's body as it is passed on, piece by piece."""
        parts = []
        while True:
            answer = self.hear()
            if answer.WhichOneof("response") == "request_trailers":
                return b"".join(parts)
            streamed = answer.request_body.response.body_mutation.streamed_response
            parts.append(streamed.body)
            if streamed.end_of_stream:
                return b"".join(parts)

    def answered(self, status: int = 200, kind: str = "text/event-stream", served: str | None = None) -> None:
        """The engine's answer begins."""
        message = ProcessingRequest()
        said_to(message.response_headers, **{":status": str(status), "content-type": kind})
        if served is not None:
            entry = message.metadata_context.filter_metadata.add(key=NAMESPACE)
            entry.value.update({f"{DESTINATION}-served": served})
        self.say(message)
        assert self.hear().WhichOneof("response") == "response_headers"

    def came(self, data: bytes, end: bool = False) -> bytes:
        """A piece of its body comes, and is passed on as it is returned."""
        message = ProcessingRequest()
        message.response_body.body, message.response_body.end_of_stream = data, end
        self.say(message)
        answer = self.hear()
        assert answer.WhichOneof("response") == "response_body"
        streamed = answer.response_body.response.body_mutation.streamed_response
        assert streamed.end_of_stream == end
        return bytes(streamed.body)

    def token(self) -> None:
        data = event({"choices": [{"index": 0, "text": "word"}]})
        assert self.came(data) == data

    def end(self) -> None:
        """The request is over at the gateway; returns when it is for the picker too."""
        self._messages.put(None)
        assert not list(self._answers)

    def finish(self) -> None:
        """The last piece of a stream, and the end."""
        self.came(b"data: [DONE]\n\n", end=True)
        self.end()

    def cancel(self) -> None:
        """The client is gone."""
        self._answers.cancel()
        self._messages.put(None)


def endpoint(answer: Any) -> str:
    """Where a request goes, by header and by metadata, which have to say the same."""
    kind = answer.WhichOneof("response")
    assert kind in ("request_headers", "request_body"), answer
    (option,) = [
        one for one in getattr(answer, kind).response.header_mutation.set_headers if one.header.key == DESTINATION
    ]
    assert option.append_action == 2, "what a client says itself should be overwritten"
    assert answer.dynamic_metadata[NAMESPACE][DESTINATION] == option.header.raw_value.decode()
    return option.header.raw_value.decode()


def refused(answer: Any) -> tuple[int, str]:
    """Status and message of a refusal."""
    assert answer.WhichOneof("response") == "immediate_response", answer
    return answer.immediate_response.status.code, json.loads(answer.immediate_response.body)["error"]["message"]


def prompt(**more: Any) -> bytes:
    return json.dumps({"prompt": "a b c", "stream": True} | more).encode()

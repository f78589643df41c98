"""The messages of Envoy's external processing (ext_proc) and of gRPC's health checks, as far as they are used here.

Fields have the numbers of envoy/service/ext_proc/v3/external_processor.proto, of the files it imports, and of
grpc/health/v1/health.proto. Other fields are ignored when read, as protobuf has it. Descriptors are in a pool of their
own, so generated modules of the same files can be imported too.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

PROCESS = ("envoy.service.ext_proc.v3.ExternalProcessor", "Process")
CHECK = ("grpc.health.v1.Health", "Check")
PACKAGE = "servegym.gateway"
STRUCT = "google.protobuf.Struct"

# ProcessingMode.BodySendMode
BODY_MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", "GRPC")
OVERWRITE = 2  # HeaderValueOption.HeaderAppendAction: OVERWRITE_IF_EXISTS_OR_ADD
SERVING, NOT_SERVING = 1, 2  # HealthCheckResponse.ServingStatus

# By message: fields as NAME: (NUMBER, TYPE), where a TYPE may be that of another message; "*" repeats it, "|NAME" is
# the oneof it belongs to. (A map is repeated entries of key and value. An enum is read as an int32.)
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "HeaderValue": {"key": (1, "string"), "value": (2, "string"), "raw_value": (3, "bytes")},
    "HeaderMap": {"headers": (1, "*HeaderValue")},
    "HeaderValueOption": {"header": (1, "HeaderValue"), "append_action": (3, "int32")},
    "HeaderMutation": {"set_headers": (1, "*HeaderValueOption"), "remove_headers": (2, "*string")},
    "MetadataEntry": {"key": (1, "string"), "value": (2, STRUCT)},
    "Metadata": {"filter_metadata": (1, "*MetadataEntry")},
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, "bool")},
    "HttpBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "HttpTrailers": {"trailers": (1, "HeaderMap")},
    "ProtocolConfiguration": {"request_body_mode": (1, "int32"), "response_body_mode": (2, "int32")},
    "ProcessingRequest": {
        "request_headers": (2, "HttpHeaders|request"),
        "response_headers": (3, "HttpHeaders|request"),
        "request_body": (4, "HttpBody|request"),
        "response_body": (5, "HttpBody|request"),
        "request_trailers": (6, "HttpTrailers|request"),
        "response_trailers": (7, "HttpTrailers|request"),
        "metadata_context": (8, "Metadata"),
        "protocol_config": (11, "ProtocolConfiguration"),
    },
    "StreamedBodyResponse": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "BodyMutation": {
        "body": (1, "bytes|mutation"),
        "clear_body": (2, "bool|mutation"),
        "streamed_response": (3, "StreamedBodyResponse|mutation"),
    },
    "CommonResponse": {
        "status": (1, "int32"),
        "header_mutation": (2, "HeaderMutation"),
        "body_mutation": (3, "BodyMutation"),
        "clear_route_cache": (5, "bool"),
    },
    "HeadersResponse": {"response": (1, "CommonResponse")},
    "BodyResponse": {"response": (1, "CommonResponse")},
    "TrailersResponse": {"header_mutation": (1, "HeaderMutation")},
    "HttpStatus": {"code": (1, "int32")},
    "ImmediateResponse": {
        "status": (1, "HttpStatus"),
        "headers": (2, "HeaderMutation"),
        "body": (3, "bytes"),
        "details": (5, "string"),
    },
    "ProcessingResponse": {
        "request_headers": (1, "HeadersResponse|response"),
        "response_headers": (2, "HeadersResponse|response"),
        "request_body": (3, "BodyResponse|response"),
        "response_body": (4, "BodyResponse|response"),
        "request_trailers": (5, "TrailersResponse|response"),
        "response_trailers": (6, "TrailersResponse|response"),
        "immediate_response": (7, "ImmediateResponse|response"),
        "dynamic_metadata": (8, STRUCT),
    },
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}


def _classes() -> dict[str, Any]:
    """Make the classes of MESSAGES, by name."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="servegym/gateway.proto", package=PACKAGE, syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        oneofs: list[str] = []
        for field, (number, declared) in fields.items():
            kind, _, oneof = declared.removeprefix("*").partition("|")
            made = message.field.add(name=field, number=number)
            made.label = made.LABEL_REPEATED if declared.startswith("*") else made.LABEL_OPTIONAL
            if kind in MESSAGES or kind == STRUCT:
                made.type, made.type_name = made.TYPE_MESSAGE, f".{kind}" if kind == STRUCT else f".{PACKAGE}.{kind}"
            else:
                made.type = getattr(made, f"TYPE_{kind.upper()}")
            if oneof:
                if oneof not in oneofs:
                    oneofs.append(oneof)
                    message.oneof_decl.add(name=oneof)
                made.oneof_index = oneofs.index(oneof)
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


CLASSES = _classes()
ProcessingRequest: Any = CLASSES["ProcessingRequest"]
ProcessingResponse: Any = CLASSES["ProcessingResponse"]
HealthCheckRequest: Any = CLASSES["HealthCheckRequest"]
HealthCheckResponse: Any = CLASSES["HealthCheckResponse"]

"""Takes what is sent by OTLP over HTTP, and writes each message down as a line of JSON.

The messages are read by OpenTelemetry's own package. Its arguments are where to listen and where to write.
"""

import http.server
import json
import sys

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MESSAGES = {
    "/under/v1/metrics": ExportMetricsServiceRequest,
    "/under/v1/traces": ExportTraceServiceRequest,
}


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        message = MESSAGES[self.path].FromString(body)
        # Fields that nobody knows are read without a word; here they are a mistake.
        length = message.ByteSize()
        message.DiscardUnknownFields()
        assert message.ByteSize() == length
        line = {
            "path": self.path,
            "type": self.headers["content-type"],
            "message": MessageToDict(message, preserving_proto_field_name=True),
        }
        with open(sys.argv[2], "a") as out:
            out.write(json.dumps(line) + "\n")
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Collector).serve_forever()

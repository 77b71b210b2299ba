"""A server on the loopback that answers as a test says: what AWS does on its bad days."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HANG = "no answer"
DROP = "the connection closed without an answer"
CUT = "an answer that ends half-way"


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    body: bytes
    content_type: str = "application/x-amz-json-1.0"


def dynamodb_error(code: str, status: int = 400, message: str = "", **more: Any) -> Answer:
    """An error as DynamoDB answers it."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **more}
    return Answer(status, json.dumps(body).encode())


def s3_error(code: str, status: int, message: str = "") -> Answer:
    """An error as S3 answers it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, body.encode(), "application/xml")


def reply(body: Mapping[str, Any]) -> Answer:
    """What DynamoDB answers when all is well."""
    return Answer(200, json.dumps(body).encode())


class ScriptedAws:
    """The server.

    Attributes:
        script: What it answers, one after the other; the last one for ever.
        asked: How many requests have come.
    """

    def __init__(self) -> None:
        self.script: list[Answer | str] = [reply({})]
        self.asked = 0
        self.endpoint = ""
        self.over = threading.Event()

    def next(self) -> Answer | str:
        self.asked += 1
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@contextmanager
def scripted_aws() -> Iterator[ScriptedAws]:
    """Starts it, and ends it."""
    aws = ScriptedAws()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = aws.next()
            if answer == HANG:
                aws.over.wait(10)
            if isinstance(answer, str) and answer != CUT:
                self.close_connection = True
                return
            status, body, kind = answer if isinstance(answer, Answer) else (200, b"{" + b" " * 1000, "x/y")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) + (1000 if answer == CUT else 0)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    for verb in ("GET", "PUT"):
        setattr(Handler, f"do_{verb}", Handler.do_POST)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that has gone away is what some tests are about."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        aws.endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            yield aws
        finally:
            aws.over.set()
            server.shutdown()
            thread.join()

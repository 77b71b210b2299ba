"""The local cloud's own address: the HTTP API of the template, and Lambda's Invoke for boto3 and the like."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from durable_core.errors import UsageError
from durable_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.local.function import LocalFunction
    from durable_core.local.sandbox import Answer
    from durable_core.local.template import Route

_INVOKE: Final = re.compile(r"/2015-03-31/functions/([^/]+)/invocations/?")


class Gateway:
    """A server for people and programs of this machine.

    Args:
        functions: By name.
        port: Where it listens; 0: anywhere.

    Attributes:
        url: Its URL.

    Raises:
        UsageError: The port is taken.
    """

    def __init__(self, functions: Mapping[str, LocalFunction], port: int = 0) -> None:
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"the port {port} can't be had: {getattr(error, 'strerror', None) or error}",
                remedy="Name another one, or 0 for any",
            ) from error
        self._server.functions = functions
        self._thread = threading.Thread(target=self._server.serve_forever, name="gateway", daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answers no more."""
        if self._thread.ident is not None:
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    functions: Mapping[str, LocalFunction]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names that the base class calls

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the functions log what they do."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        invoked = _INVOKE.fullmatch(path)
        if invoked and self.command == "POST":
            self._invoke(unquote(invoked[1]), body)
            return
        for function in self.server.functions.values():
            for route in function.spec.routes:
                found = path_parameters(route, self.command, path)
                if found is not None:
                    self._send_http(function.invoke(self._http_event(route, found, body)))
                    return
        self._send(404, {"message": "Not Found"})

    def _invoke(self, name: str, body: bytes) -> None:
        """Lambda's Invoke: by the name in the template, or that of the folder."""
        function = next(
            (
                one
                for one in self.server.functions.values()
                if name in (one.spec.name, one.spec.folder.rpartition("/")[2])
            ),
            None,
        )
        if function is None:
            self._send(404, {"Message": f"Function not found: {name}"}, "ResourceNotFoundException")
            return
        try:
            event = json.loads(body) if body else {}
        except ValueError:
            self._send(400, {"Message": "the payload is no JSON"}, "InvalidRequestContentException")
            return
        if self.headers.get("X-Amz-Invocation-Type") == "Event":
            threading.Thread(target=_invoked_safely, args=(function, event), daemon=True).start()
            self._send_bytes(202, b"", {})
            return
        answer = function.invoke(event)
        payload = answer.payload
        if answer.failure in ("timeout", "crash"):
            kind = "Sandbox.Timedout" if answer.failure == "timeout" else "Runtime.ExitError"
            payload = {"errorType": kind, "errorMessage": str(answer.payload)}
        headers = {"X-Amz-Function-Error": "Unhandled"} if answer.failure else {}
        self._send_bytes(200, json.dumps(payload).encode(), {"X-Amz-Executed-Version": "$LATEST", **headers})

    def _http_event(self, route: Route, parameters: dict[str, str], body: bytes) -> dict[str, Any]:
        """Payload format 2.0 of an HTTP API."""
        parts = urlsplit(self.path)
        text, is_base64 = _as_text(body)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        event = {
            "version": "2.0",
            "routeKey": f"{route.method} {route.path}",
            "rawPath": parts.path,
            "rawQueryString": parts.query,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "requestContext": {
                "accountId": "123456789012",
                "apiId": "local",
                "http": {
                    "method": self.command,
                    "path": parts.path,
                    "protocol": self.request_version,
                    "sourceIp": self.client_address[0],
                    "userAgent": self.headers.get("User-Agent", ""),
                },
                "requestId": str(uuid.uuid4()),
                "routeKey": f"{route.method} {route.path}",
                "stage": "$default",
                "timeEpoch": int(time.time() * 1000),
            },
            "isBase64Encoded": is_base64,
        }
        optional = {"pathParameters": parameters, "queryStringParameters": query, "body": text}
        return event | {name: value for name, value in optional.items() if value}

    def _send_http(self, answer: Answer) -> None:
        """What an HTTP API makes of the answer of a function."""
        if answer.failure:
            self._send(500, {"message": "Internal Server Error"})
        elif isinstance(answer.payload, dict) and "statusCode" in answer.payload:
            text = answer.payload.get("body") or ""
            body = base64.b64decode(text) if answer.payload.get("isBase64Encoded") else text.encode()
            self._send_bytes(int(answer.payload["statusCode"]), body, answer.payload.get("headers") or {})
        else:
            self._send(200, answer.payload)

    def _send(self, status: int, payload: Any, error_type: str | None = None) -> None:
        headers = {"X-Amzn-ErrorType": error_type} if error_type else {}
        self._send_bytes(status, json.dumps(payload).encode(), headers)

    def _send_bytes(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def path_parameters(route: Route, method: str, path: str) -> dict[str, str] | None:
    """What a path gives for the names in a route; None if it is another one."""
    if method != route.method:
        return None
    names = re.findall(r"\{(\w+)\}", route.path)
    pattern = re.sub(r"\\\{\w+\\\}", "([^/]+)", re.escape(route.path))
    found = re.fullmatch(pattern, path)
    return dict(zip(names, map(unquote, found.groups()), strict=True)) if found else None


def _as_text(body: bytes) -> tuple[str, bool]:
    try:
        return body.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), True


def _invoked_safely(function: LocalFunction, event: Any) -> None:
    try:
        function.invoke(event)
    except Exception as error:  # nobody waits for the answer
        get_logger("durable_core.local").warning("invocation_failed", reason=repr(error))

"""AWS on this machine: moto's server in a process of its own, which knows its callers by their access keys.

    python -m durable_core.local.aws_process [PORT]

It prints its port, reads the pids of sandboxes from standard input (`+PID`, `-PID`), and ends when that
does: so neither it nor a sandbox is left when the local cloud is killed.

- What each caller asks for is counted, in the words of IAM: `GET /_local/calls`.
- A message that a sandbox sends carries on the lineage of the message that the sandbox works on:
  `POST /_local/lineage`.
- Requests about items and objects are dealt with one at a time: moto looks at a condition and writes in two
  steps, which threads could come between.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sqs.models import SQSBackend
from werkzeug.serving import WSGIRequestHandler, make_server

from durable_core.local.aws_endpoint import ADDRESS_IN_USE
from durable_core.local.lineage import ATTRIBUTE, lineage_header
from durable_core.local.requests_seen import Asked, Caller, asked, caller

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIEnvironment

_ONE_AT_A_TIME: Final = ("dynamodb", "s3")
_COUNTED: Final = ("dynamodb", "s3", "sqs", "events")
_GRACE_S: Final = 2.0

_sending = threading.local()  # `lineage` of the sandbox whose request a thread answers


def keep_lineage() -> None:
    """Has moto's queues give a sandbox's messages the trace header that Lambda would give them.

    There and not in the requests: moto drops the header of messages that are sent in batches.
    """
    send = SQSBackend.send_message

    def sent(backend: SQSBackend, *args: Any, **named: Any) -> Any:
        lineage: dict[str, int] | None = getattr(_sending, "lineage", None)
        if lineage is not None:
            header = {"DataType": "String", "StringValue": lineage_header(lineage)}
            named["system_attributes"] = {**(named.get("system_attributes") or {}), ATTRIBUTE: header}
        return send(backend, *args, **named)

    setattr(SQSBackend, "send_message", sent)  # noqa: B010 - a type checker lets no method be assigned


class Observed:
    """moto, and what is seen of its callers."""

    def __init__(self) -> None:
        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._turn = threading.Lock()
        self._calls: Counter[tuple[str, Asked]] = Counter()
        self._lineage: dict[str, dict[str, int]] = {}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers one request."""
        who = caller(environ.get("HTTP_AUTHORIZATION", ""))
        if environ["PATH_INFO"].startswith("/_local/"):
            return self._local(environ, start_response)
        if who is None or who.service not in _COUNTED:
            answer: Iterable[bytes] = self._moto(environ, start_response)
            return answer
        body = self._read(environ)  # before it is its turn, or a slow sender would keep the others waiting
        self._count(who, environ, body)
        if who.service in _ONE_AT_A_TIME:
            with self._turn:
                return list(self._moto(environ, start_response))
        _sending.lineage = self._lineage.get(who.key_id) if who.service == "sqs" else None
        answer = self._moto(environ, start_response)
        return answer

    @staticmethod
    def _read(environ: WSGIEnvironment) -> bytes:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body: bytes = environ["wsgi.input"].read(length) if length else b""
        if length:
            environ["wsgi.input"] = BytesIO(body)
        return body

    def _count(self, who: Caller, environ: WSGIEnvironment, body: bytes) -> None:
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        found = asked(
            who.service,
            target,
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            environ["QUERY_STRING"],
            body,
        )
        self._calls.update((who.key_id, one) for one in found)

    def _local(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = self._read(environ)
        if environ["PATH_INFO"] == "/_local/lineage":
            given = json.loads(body)
            self._lineage[given["key_id"]] = given["hops"]
        found = [
            {"key_id": key_id, "action": one.action, "resource": one.resource, "times": times}
            for (key_id, one), times in sorted(self._calls.copy().items())
        ]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(found if environ["PATH_INFO"] == "/_local/calls" else {}).encode()]


class _Quiet(WSGIRequestHandler):
    """Keeps connections open, as AWS does, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Nothing."""


def main() -> None:
    """Serves until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C reaches the whole terminal; the order is ours
        signal.signal(number, signal.SIG_IGN)
    keep_lineage()
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    try:
        server = make_server("127.0.0.1", port, Observed(), threaded=True, request_handler=_Quiet)
    except SystemExit:  # how werkzeug says that the port is taken
        os._exit(ADDRESS_IN_USE)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sandboxes: set[int] = set()
    for line in sys.stdin:
        (sandboxes.add if line[0] == "+" else sandboxes.discard)(int(line[1:]))
    _end(sandboxes)
    os._exit(0)  # requests that are still open have nobody to go to


def _end(sandboxes: set[int]) -> None:
    """Whoever is left: asked first, so that an emulator takes its runtime along."""
    for number, pause_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, 0)):
        for pid in sandboxes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if sandboxes:
            time.sleep(pause_s)


if __name__ == "__main__":
    main()

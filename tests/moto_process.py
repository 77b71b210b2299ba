"""AWS on this machine: a moto server in a process of its own, started by `tests.cloud`.

It prints its port, and ends when its standard input does, so that none is left when the tests are killed.
Requests about items and objects are dealt with one at a time: moto looks at a condition and writes in two
steps, which threads could come between.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_ONE_AT_A_TIME = ("/dynamodb/", "/s3/")


class Serialised:
    """moto, which sees one request for an item or object after the other."""

    def __init__(self) -> None:
        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not any(scope in environ.get("HTTP_AUTHORIZATION", "") for scope in _ONE_AT_A_TIME):
            return self._moto(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length:  # read before it is its turn, or a slow sender would keep the others waiting
            environ["wsgi.input"] = BytesIO(environ["wsgi.input"].read(length))
        with self._lock:
            return list(self._moto(environ, start_response))


class Quiet(WSGIRequestHandler):
    """Keeps connections open, as AWS does, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        pass


def main() -> None:
    server = make_server("127.0.0.1", 0, Serialised(), threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # requests that are still open have nobody to go to


if __name__ == "__main__":
    main()

"""The process that stands in for AWS, seen from here: starting it, clients to it, what it counted."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.request import Request, urlopen

from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REGION: Final = "us-east-1"
OWN_KEY: Final = "LOCALCLOUD"
ADDRESS_IN_USE: Final = 98
"""The process's exit code when its port is taken."""

_PATIENCE_S: Final = 60


class Calls(NamedTuple):
    """How often somebody asked for something.

    Attributes:
        key_id: Who.
        action: What, as a policy names it.
        resource: Of what.
        times: How often.
    """

    key_id: str
    action: str
    resource: str
    times: int


class AwsEndpoint:
    """AWS on this machine.

    Args:
        port: Where it listens; 0: anywhere.

    Attributes:
        url: Its URL.

    Raises:
        UsageError: The port is taken, or moto isn't installed.
    """

    def __init__(self, port: int = 0) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this package's own module
            [sys.executable, "-m", "durable_core.local.aws_process", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._telling = threading.Lock()
        assert self._process.stdin is not None  # noqa: S101 - because of PIPE
        assert self._process.stdout is not None  # noqa: S101
        self._stdin = self._process.stdin
        told = self._process.stdout.readline().strip()
        if not told:
            self._refuse(port)
        self.url = f"http://127.0.0.1:{told}"

    def _refuse(self, port: int) -> None:
        self.close()
        if self._process.returncode == ADDRESS_IN_USE:
            raise UsageError(f"the port {port} is taken", remedy="Name another one, or 0 for any")
        raise UsageError(
            "the stand-in for AWS did not start; what it wrote is above",
            remedy="pip install 'durable-core[local]'",
        )

    def client(self, service: str, key_id: str = OWN_KEY) -> Any:
        """A client of boto3."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=key_id,
            aws_secret_access_key="local",  # noqa: S106 - nobody checks it
            config=Config(read_timeout=_PATIENCE_S, max_pool_connections=50, s3={"addressing_style": "path"}),
        )

    def set_lineage(self, key_id: str, hops: Mapping[str, int]) -> None:
        """What the messages of a sandbox carry on from now on."""
        body = json.dumps({"key_id": key_id, "hops": hops}).encode()
        with urlopen(Request(f"{self.url}/_local/lineage", data=body), timeout=_PATIENCE_S):  # noqa: S310 - http
            pass

    def calls(self) -> list[Calls]:
        """What each caller has asked for so far."""
        with urlopen(f"{self.url}/_local/calls", timeout=_PATIENCE_S) as answer:  # noqa: S310 - http
            return [Calls(**one) for one in json.load(answer)]

    def watch(self, pid: int) -> None:
        """Has a process ended if this one dies."""
        self._tell([f"+{pid}"])

    def forget(self, pid: int) -> None:
        """Takes that back."""
        self._tell([f"-{pid}"])

    def _tell(self, lines: Iterable[str]) -> None:
        with self._telling:
            self._stdin.write("".join(f"{line}\n" for line in lines))
            self._stdin.flush()

    def close(self) -> None:
        """Ends it, and what it watches."""
        self._stdin.close()
        self._process.wait(_PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

"""A run's ids in X-Ray, so that traces can be searched by them: one datagram to Lambda's daemon, no library.

Lambda makes the trace and its segment, which code can't add to; a subsegment that has only annotations is how
the X-Ray SDK does it, too. Without a trace, or when it isn't sampled, nothing is sent.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from typing import Final

TRACE_VARIABLE: Final = "_X_AMZN_TRACE_ID"
DAEMON_VARIABLE: Final = "AWS_XRAY_DAEMON_ADDRESS"
_HEADER: Final = b'{"format": "json", "version": 1}\n'
_TRACE: Final = re.compile(r"(?:^|;)Root=([0-9A-Fa-f-]+)")
_PARENT: Final = re.compile(r"(?:^|;)Parent=([0-9A-Fa-f]{16})")


def trace_id() -> str | None:
    """The trace that this invocation belongs to."""
    found = _TRACE.search(os.environ.get(TRACE_VARIABLE, ""))
    return found.group(1) if found else None


def annotate(name: str, began_s: float, **annotations: str | int) -> None:
    """Puts ids into the trace; a daemon that isn't there is no reason to fail.

    Args:
        name: Of the subsegment.
        began_s: When it began, in seconds since the epoch; it ends now.
        annotations: By name.
    """
    trace = os.environ.get(TRACE_VARIABLE, "")
    root, parent, daemon = _TRACE.search(trace), _PARENT.search(trace), os.environ.get(DAEMON_VARIABLE, "")
    host, _, port = daemon.rpartition(":")
    if root is None or parent is None or "Sampled=1" not in trace or not host or not port.isdecimal():
        return
    segment = {
        "type": "subsegment",
        "id": os.urandom(8).hex(),
        "trace_id": root.group(1),
        "parent_id": parent.group(1),
        "name": name,
        "start_time": began_s,
        "end_time": time.time(),
        "annotations": annotations,
    }
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(_HEADER + json.dumps(segment).encode(), (host, int(port)))
    except OSError:  # a trace that lacks its ids is still a trace
        return

"""What runs inside a plain sandbox: imports the handler, then answers events, one a line, on standard output.

It is run as a file, and imports nothing of this package: the function's own copy may be another one.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any


class Context:
    """What Lambda gives a handler beside the event."""

    def __init__(self, request_id: str) -> None:
        self.aws_request_id = request_id
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.invoked_function_arn = f"arn:aws:lambda:us-east-1:123456789012:function:{self.function_name}"
        self.log_group_name = self.log_stream_name = "local"
        self.identity = self.client_context = None
        self._end_s = time.monotonic() + float(os.environ["AWS_LAMBDA_FUNCTION_TIMEOUT"])

    def get_remaining_time_in_millis(self) -> int:
        """Until the time-out."""
        return max(int((self._end_s - time.monotonic()) * 1000), 0)


def main() -> None:
    """Answers until standard input ends; what handlers print goes to the log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # A file that is run has its own folder on the path: another function's `app` can't be there, but ours
    # could be hidden by this package's modules.
    sys.path.pop(0)
    module, _, name = os.environ["_HANDLER"].rpartition(".")
    handler = getattr(importlib.import_module(module), name)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        call = json.loads(line)
        answers.write(f"{json.dumps(_answer(handler, call['event'], Context(call['request_id'])))}\n")
        answers.flush()


def _answer(handler: Any, event: Any, context: Context) -> dict[str, Any]:
    try:
        result = handler(event, context)
        json.dumps(result)
    except Exception as error:  # whatever the function raises is its answer, as on Lambda
        traceback.print_exc()
        return {"error": {"errorType": type(error).__name__, "errorMessage": str(error)}}
    return {"result": result}


if __name__ == "__main__":
    main()

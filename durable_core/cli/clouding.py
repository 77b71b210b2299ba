"""`durable local-cloud`: what `template.yaml` deploys, running on this machine."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_core.cli import output
from durable_core.cli.jsonable import as_document
from durable_core.cli.options import AsJson, LogFormat, LogLevel  # noqa: TC001 - typer reads the annotations
from durable_core.errors import UsageError
from durable_core.log import configure_logging

if TYPE_CHECKING:
    from collections.abc import Mapping

_FEW: Final = 4


def local_cloud(
    project: Annotated[
        Path, typer.Option("--project", metavar="FOLDER", help="The folder with template.yaml.")
    ] = Path(),
    from_source: Annotated[
        bool,
        typer.Option(
            "--from-source",
            help="Run functions from their source, not as scripts/build.sh host built them.",
        ),
    ] = False,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Run functions without the emulator; so it is on macOS and Windows."),
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Of the HTTP API and of Lambda's Invoke; 0: any.")
    ] = 8090,
    aws_port: Annotated[
        int, typer.Option("--aws-port", min=0, max=65535, help="Of the stand-in for AWS; 0: any.")
    ] = 8091,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=2, help="The template's Concurrency: sandboxes per queue.")
    ] = _FEW,
    every: Annotated[
        float | None,
        typer.Option("--every", min=0.1, metavar="SECONDS", help="Period of schedules, instead of theirs."),
    ] = None,
    timeout: Annotated[
        list[str] | None,
        typer.Option("--timeout", metavar="FUNCTION=SECONDS", help="Another time-out for a function."),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option("--logs", metavar="FOLDER", help="A file for each sandbox, instead of standard error."),
    ] = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run what template.yaml deploys on this machine, without Docker and AWS, until Ctrl-C.

    Tables, buckets, queues and buses are in memory, and gone at the end.

    Example: durable local-cloud --from-source
    """
    configure_logging(log_level, log_format)
    try:
        from durable_core.local.cloud import LocalCloud, LocalSettings
    except ImportError as error:
        raise UsageError(
            f"the local cloud needs what isn't installed: {error}", remedy="pip install 'durable-core[local]'"
        ) from error

    settings = LocalSettings(
        project=project,
        from_source=from_source,
        plain=plain,
        port=port,
        aws_port=aws_port,
        parameters={"Concurrency": str(concurrency)},
        every_s=every,
        timeouts_s=dict(map(_timeout, timeout or ())),
        logs=logs,
    )
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    with LocalCloud(settings) as cloud:
        facts = {
            "url": cloud.gateway.url,
            "aws": cloud.aws.url,
            "store": cloud.store_url,
            "functions": [spec.folder.rpartition("/")[2] for spec in cloud.specs],
        }
        output.write(as_document(facts) if as_json else _told(facts))
        while not ended.wait(3600):
            pass
        output.tell("Ending ...")


def _timeout(text: str) -> tuple[str, int]:
    name, _, seconds = text.partition("=")
    if not name or not seconds.isdecimal() or int(seconds) < 1:
        raise UsageError(
            f"--timeout {text!r} is no function with seconds", remedy="Write --timeout DriveRun=30"
        )
    return name, int(seconds)


def _told(facts: Mapping[str, object]) -> str:
    return f"""\
The local cloud is up; Ctrl-C ends it. For other terminals:

  export AWS_ENDPOINT_URL={facts["aws"]} AWS_REGION=us-east-1
  export AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local
  export DURABLE_STORE='{facts["store"]}'
  curl {facts["url"]}/runs -d '{{"workflow": "NAME", "inputs": {{}}, "run_id": "one"}}'
  curl {facts["url"]}/2015-03-31/functions/inspect_run/invocations -d '{{"run_id": "one"}}'
  durable list
"""

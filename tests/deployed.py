"""The built functions in the local cloud, with workflows of the tests beside the examples."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from durable_core.local.cloud import BUILT, LocalCloud, LocalSettings
from durable_core.local.template import read_template
from tests.artefacts import ROOT, built, sam_python
from tests.policies import missing

PROBES = ROOT / "tests" / "e2e" / "programs" / "cloud_probes.py"
TIMEOUT_S = 8  # the emulator's start counts against it
VISIBLE_S = 14  # a lease ends five seconds after the invocation: before that nobody takes the run over
MANIFESTS = "manifests"  # a bucket of the user's own
_TRIGGERED = ("DriveRun", "WorkChunk")


def lay_out(folder: Path, *, template: str | None = None) -> Path:
    """A project whose functions are the built ones, and know the workflows of the tests, too."""
    host = built("host")
    folder.mkdir(exist_ok=True)
    (folder / ".venv-sam").symlink_to(sam_python().parents[1])
    text = template if template is not None else (ROOT / "template.yaml").read_text("utf-8")
    (folder / "template.yaml").write_text(text, "utf-8")
    for function in (path.parent for path in host.glob("*/app.py")):
        place = folder / BUILT / function.name
        place.mkdir(parents=True)
        for entry in function.iterdir():
            if entry.name != "functions":
                (place / entry.name).symlink_to(entry)
                continue
            shutil.copytree(entry, place / "functions")
            shutil.copy(PROBES, place / "functions" / "workflows")
    return folder


@contextlib.contextmanager
def deployed(
    folder: Path, *, template: str | None = None, concurrency: int = 4, every_s: float = 2
) -> Iterator[Deployed]:
    """The local cloud with what was built, with short time-outs.

    Args:
        folder: For everything that it makes.
        template: Instead of ours.
        concurrency: Sandboxes for each queue.
        every_s: Between two sweeps, which send for runs whose messages are late.
    """
    settings = LocalSettings(
        project=lay_out(folder, template=template),
        parameters={"Concurrency": str(concurrency), "LogLevel": "debug", "ManifestBucket": MANIFESTS},
        timeouts_s=dict.fromkeys(_TRIGGERED, TIMEOUT_S),
        visibility_s={"DriveQueue": VISIBLE_S, "WorkQueue": VISIBLE_S},
        every_s=every_s,
        logs=folder / "logs",
    )
    with LocalCloud(settings) as cloud:
        found = Deployed(cloud, folder)
        yield found
        # Whatever a test had the functions do: their roles allow it.
        assert missing(found.template, found.names, cloud.aws.calls()) == []


class Deployed:
    """It, and short words for what tests do with it.

    Attributes:
        cloud: The local cloud.
        folder: Of the project; `logs` are in it.
        asked_again: How often a run was looked at in vain, since moto was too busy to answer in time.
    """

    def __init__(self, cloud: LocalCloud, folder: Path) -> None:
        self.cloud = cloud
        self.folder = folder
        self.asked_again = 0

    @property
    def template(self) -> dict[str, Any]:
        """That it was made from."""
        return read_template(self.folder / "template.yaml")

    @property
    def names(self) -> dict[str, str]:
        """What things are called, for `tests.policies`."""
        return {**self.cloud.outputs, "ManifestBucketRef": MANIFESTS}

    def outcomes(self) -> Counter[str]:
        """How many invocations of all functions ended how."""
        return sum((one.outcomes.copy() for one in self.cloud.functions.values()), Counter())

    def call(self, function: str, event: Any) -> Any:
        """What a function answers."""
        answer = self.cloud.functions[function].invoke(event)
        assert answer.failure is None, answer
        return answer.payload

    def start(self, workflow: str, run_id: str, **inputs: Any) -> Any:
        return self.call("StartRun", {"workflow": workflow, "run_id": run_id, "inputs": inputs})

    def inspect(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("InspectRun", {"run_id": run_id})
        return found

    def ended(self, run_id: str, *, limit_s: float = 120) -> dict[str, Any]:
        """The run, once it is over."""
        end = time.monotonic() + limit_s
        while True:
            answer = self.cloud.functions["InspectRun"].invoke({"run_id": run_id})
            found: dict[str, Any] = answer.payload
            if answer.failure is None and found["status"] in ("COMPLETED", "FAILED", "CANCELLED"):
                return found
            if answer.failure is not None:  # as a caller would: it says that it can be tried again
                assert found["errorType"] == "JournalUnavailable", answer
                self.asked_again += 1
            assert time.monotonic() < end, f"{run_id} is still {found}"
            time.sleep(0.3)

    def send_drive(self, run_id: str, times: int = 1) -> None:
        client = self.cloud.aws.client("sqs")
        for _ in range(times):
            body = json.dumps({"kind": "drive", "run_id": run_id})
            client.send_message(QueueUrl=self.cloud.outputs["DriveQueueRef"], MessageBody=body)

    def letters(self) -> list[str]:
        """Takes what is in all dead letters."""
        client, found = self.cloud.aws.client("sqs"), []
        for name in ("DriveDeadLetters", "WorkDeadLetters", "RequestDeadLetters"):
            url = self.cloud.outputs[f"{name}Ref"]
            reply = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
            found += [one["Body"] for one in reply.get("Messages", ())]
        return found

    def logs(self, functions: Iterable[str] = ("",)) -> str:
        """What the functions have written."""
        names = [f"LOCAL-{one}*.log" for one in functions]
        return "".join(path.read_text() for name in names for path in (self.folder / "logs").glob(name))

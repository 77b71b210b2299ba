"""Reads `template.yaml`: its functions and their triggers, and what of it moto's CloudFormation can make.

Nothing that the template says is written a second time: parameters, conditions and references are resolved by
`create_stack`, which is given the tables, buckets, queues and buses, and tells the rest in its outputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_KEPT: Final = (
    "AWS::DynamoDB::Table",
    "AWS::Events::EventBus",
    "AWS::S3::Bucket",
    "AWS::SQS::Queue",
)
_FUNCTION: Final = "AWS::Serverless::Function"
_RATE: Final = re.compile(r"rate\((\d+) (second|minute|hour|day)s?\)")
_UNITS_S: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


@dataclass(frozen=True, slots=True)
class QueueTrigger:
    """A queue whose messages a function is given.

    Attributes:
        queue: Its name in the template.
        batch_size: Most messages of one invocation.
        reports_failures: Whether the function's answer says which messages failed.
        concurrency_output: The output of the stack that says how many sandboxes there may be; None: no limit.
    """

    queue: str
    batch_size: int
    reports_failures: bool
    concurrency_output: str | None


@dataclass(frozen=True, slots=True)
class Route:
    """A method and path of the HTTP API, such as `POST /runs/{run_id}/signals`."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A function as the template has it.

    Attributes:
        name: In the template.
        folder: Of its source, below the template's.
        handler: Module and name in it.
        timeout_s: Its time-out.
        memory_mb: Its memory.
        loops: Whether Lambda lets it call itself through queues without end.
        environment: For each variable the output of the stack that has its value.
        queues: Its queues.
        bridges: The queues through which events of the bus reach it.
        routes: Its part of the HTTP API.
        every_s: The period of its schedule; None without one.
    """

    name: str
    folder: str
    handler: str
    timeout_s: int
    memory_mb: int
    loops: bool
    environment: Mapping[str, str]
    queues: tuple[QueueTrigger, ...]
    bridges: tuple[str, ...]
    routes: tuple[Route, ...]
    every_s: float | None


@dataclass(frozen=True, slots=True)
class Reduced:
    """What is left for the local cloud.

    Attributes:
        functions: By name.
        template: For `create_stack`.
        parameters: With their defaults.
    """

    functions: Mapping[str, FunctionSpec]
    template: Mapping[str, Any]
    parameters: tuple[str, ...]


def read_template(path: Path) -> dict[str, Any]:
    """A template with its short forms (`!Ref`) written out.

    Raises:
        UsageError: There is none, or it can't be read.
    """
    import yaml

    try:
        found = yaml.load(path.read_text("utf-8"), _loader())  # noqa: S506 - a SafeLoader with more tags
    except OSError as error:
        raise UsageError(
            f"{path} can't be read: {error.strerror}", remedy="Name the folder that has template.yaml"
        ) from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is no YAML: {error}", remedy="Mend it") from error
    if not isinstance(found, dict) or not isinstance(found.get("Resources"), dict):
        raise UsageError(f"{path} has no resources", remedy="Name the folder that has template.yaml")
    return found


def reduce(template: Mapping[str, Any]) -> Reduced:
    """What the local cloud makes of a template.

    Raises:
        UsageError: A trigger is of a kind that isn't known here.
    """
    resources: dict[str, Any] = template["Resources"]
    kept = {name: one for name, one in resources.items() if one["Type"] in _KEPT}
    outputs = {f"{name}Ref": {"Value": _reference(name, one["Type"])} for name, one in kept.items()}
    for name, one in kept.items():
        if one["Type"] == "AWS::SQS::Queue":
            outputs[f"{name}Arn"] = {"Value": _attribute(name, "Arn")}
    shared = template.get("Globals", {}).get("Function", {})
    functions = {}
    for name, one in resources.items():
        if one["Type"] == _FUNCTION:
            made = _Function(name, {**shared, **one["Properties"]}, shared)
            functions[name] = made.spec(kept, outputs)
    return Reduced(
        functions,
        {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Parameters": template.get("Parameters", {}),
            "Conditions": template.get("Conditions", {}),
            "Resources": kept,
            "Outputs": outputs,
        },
        tuple(template.get("Parameters", {})),
    )


class _Function:
    """One function, while it is read."""

    def __init__(self, name: str, properties: dict[str, Any], shared: Mapping[str, Any]) -> None:
        self.name = name
        self.properties = properties
        self.variables: dict[str, Any] = {
            **shared.get("Environment", {}).get("Variables", {}),
            **properties.get("Environment", {}).get("Variables", {}),
        }

    def spec(self, kept: dict[str, Any], outputs: dict[str, Any]) -> FunctionSpec:
        """Reads it; adds what it needs to the resources and outputs."""
        environment = {}
        for number, (variable, value) in enumerate(self.variables.items()):
            environment[variable] = f"{self.name}Variable{number}"
            outputs[environment[variable]] = {"Value": value}
        return FunctionSpec(
            name=self.name,
            folder=self.properties["CodeUri"],
            handler=self.properties["Handler"],
            timeout_s=self.properties["Timeout"],
            memory_mb=self.properties["MemorySize"],
            loops=self.properties.get("RecursiveLoop") == "Allow",
            environment=environment,
            queues=tuple(self._queues(outputs)),
            bridges=tuple(self._bridges(kept, outputs)),
            routes=tuple(Route(one["Method"].upper(), one["Path"]) for _, one in self._events("HttpApi")),
            every_s=next((_period_s(one["Schedule"]) for _, one in self._events("Schedule")), None),
        )

    def _events(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, event in self.properties.get("Events", {}).items():
            if event["Type"] not in ("SQS", "EventBridgeRule", "HttpApi", "Schedule"):
                raise UsageError(
                    f"the trigger {name} of {self.name} is of type {event['Type']}, which the local cloud "
                    "doesn't know",
                    remedy="It knows SQS, EventBridgeRule, HttpApi and Schedule",
                )
            if event["Type"] == kind:
                yield name, event["Properties"]

    def _queues(self, outputs: dict[str, Any]) -> Iterator[QueueTrigger]:
        for name, event in self._events("SQS"):
            limit = event.get("ScalingConfig", {}).get("MaximumConcurrency")
            output = f"{self.name}{name}Concurrency" if limit is not None else None
            if output:
                outputs[output] = {"Value": limit}
            yield QueueTrigger(
                _logical_id(event["Queue"]),
                event.get("BatchSize", 10),
                "ReportBatchItemFailures" in event.get("FunctionResponseTypes", ()),
                output,
            )

    def _bridges(self, kept: dict[str, Any], outputs: dict[str, Any]) -> Iterator[str]:
        """moto's buses reach queues, not functions."""
        for name, event in self._events("EventBridgeRule"):
            bridge = f"{self.name}{name}Bridge"
            kept[bridge] = {"Type": "AWS::SQS::Queue", "Properties": self._as_asynchronous_calls()}
            kept[f"{bridge}Rule"] = {
                "Type": "AWS::Events::Rule",
                "Properties": {
                    "EventBusName": event["EventBusName"],
                    "EventPattern": event["Pattern"],
                    "Targets": [{"Id": "bridge", "Arn": _attribute(bridge, "Arn")}],
                },
            }
            outputs[f"{bridge}Ref"] = {"Value": {"Ref": bridge}}
            outputs[f"{bridge}Arn"] = {"Value": _attribute(bridge, "Arn")}
            yield bridge

    def _as_asynchronous_calls(self) -> dict[str, Any]:
        """What becomes of calls that nobody waits for, as a queue has it."""
        config = self.properties.get("EventInvokeConfig", {})
        failed = config.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")
        retries = config.get("MaximumRetryAttempts", 2)
        redrive = {"deadLetterTargetArn": failed, "maxReceiveCount": retries + 1}
        visible = {"VisibilityTimeout": self.properties["Timeout"]}
        return {**visible, "RedrivePolicy": redrive} if failed else visible


def _reference(name: str, kind: str) -> dict[str, Any]:
    """A bus is not itself for moto, only by its name."""
    return _attribute(name, "Name") if kind == "AWS::Events::EventBus" else {"Ref": name}


def _attribute(name: str, attribute: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [name, attribute]}


def _logical_id(value: Any) -> str:
    found: str = value["Ref"] if "Ref" in value else value["Fn::GetAtt"][0]
    return found


def _period_s(schedule: str) -> float:
    found = _RATE.fullmatch(schedule)
    if found is None:
        raise UsageError(f"the schedule {schedule!r} isn't known here", remedy="Write rate(1 minute)")
    return int(found[1]) * _UNITS_S[found[2]]


def _loader() -> Any:
    """YAML with CloudFormation's short forms; nothing else is made of a tag."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML brings no types
        pass

    def construct(loader: Any, suffix: str, node: Any) -> dict[str, Any]:
        if isinstance(node, yaml.ScalarNode):
            value: Any = loader.construct_scalar(node)
        elif isinstance(node, yaml.SequenceNode):
            value = loader.construct_sequence(node, deep=True)
        else:
            value = loader.construct_mapping(node, deep=True)
        if suffix == "GetAtt" and isinstance(value, str):
            value = value.split(".", 1)
        return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}

    Loader.add_multi_constructor("!", construct)
    return Loader

"""What the roles of the template allow, beside what the functions really ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from durable_core.local.aws_endpoint import Calls
from durable_core.local.requests_seen import Asked
from tests.infra.rules import OF_THE_TRIGGER, Template, as_list, functions, role_of, statements

# Written exceptions: allowed although no request of these functions shows it.
UNSEEN = {
    "logs:CreateLogStream": "Lambda's own",
    "logs:PutLogEvents": "Lambda's own",
    "xray:PutTelemetryRecords": "Lambda's own",
    "xray:PutTraceSegments": "Lambda's own",
    "kms:Decrypt": "asked for by the services",
    "kms:GenerateDataKey": "asked for by the services",
    **dict.fromkeys(OF_THE_TRIGGER, "asked for by the trigger"),
}
UNSEEN_OF = {
    **dict.fromkeys(
        [(name, "s3:ListBucket") for name in ("StartRun", "SignalRun", "DriveRun", "WorkChunk")],
        "without it a missing object answers 403 instead of 404",
    ),
    **dict.fromkeys(
        [(name, "s3:GetObject") for name in ("StartRun", "SignalRun")],
        "an object is read back only if the reply to its put was lost",
    ),
}
# Asynchronous calls that fail are put there by Lambda itself.
BY_LAMBDA = "RequestDeadLetters"


def allowed(template: Template, outputs: Mapping[str, str]) -> dict[str, set[Asked]]:
    """What each function may do, with the resources' real names."""
    return {
        name: {
            Asked(action, _name(resource, outputs))
            for statement in statements(role_of(template, function))
            if statement["Resource"] != "*" and "KmsKeyArn" not in str(statement["Resource"])
            for action in as_list(statement["Action"])
            for resource in as_list(statement["Resource"])
        }
        for name, function in functions(template).items()
    }


def asked_for(calls: list[Calls]) -> dict[str, set[Asked]]:
    """What the sandboxes of each function have asked for."""
    found: dict[str, set[Asked]] = {}
    for one in calls:
        named = re.fullmatch(r"LOCAL-(\w+)-\d+", one.key_id)
        if named:
            found.setdefault(named[1], set()).add(Asked(one.action, one.resource))
    return found


def missing(template: Template, outputs: Mapping[str, str], calls: list[Calls]) -> list[str]:
    """What functions have asked for and may not do."""
    may = allowed(template, outputs)
    return sorted(
        f"{function}: {one.action} on {one.resource}"
        for function, asked in asked_for(calls).items()
        for one in asked - may[function]
    )


def unused(template: Template, outputs: Mapping[str, str], calls: list[Calls]) -> list[str]:
    """What functions may do and have not asked for, without the written exceptions."""
    asked = asked_for(calls)
    return sorted(
        f"{function}: {one.action} on {one.resource}"
        for function, may in allowed(template, outputs).items()
        for one in may - asked.get(function, set())
        if one.action not in UNSEEN
        and (function, one.action) not in UNSEEN_OF
        and one != Asked("sqs:SendMessage", _queue(outputs, BY_LAMBDA))
    )


def _queue(outputs: Mapping[str, str], name: str) -> str:
    return outputs[f"{name}Ref"].rpartition("/")[2]


def _name(resource: Any, outputs: Mapping[str, str]) -> str:
    """`${RunsTable.Arn}/index/by_due` as the stack named it; objects of a bucket all alike."""
    if "Fn::GetAtt" in resource:
        name, suffix = resource["Fn::GetAtt"][0], ""
    else:
        arn = resource["Fn::Sub"].replace(
            "arn:${AWS::Partition}:s3:::${ManifestBucket}", "${ManifestBucket.Arn}"
        )
        found = re.fullmatch(r"\$\{(\w+)\.Arn\}(.*)", arn)
        assert found, resource
        name, suffix = found[1], found[2]
    if f"{name}Ref" not in outputs:
        return f"{name}{suffix}"
    if suffix.endswith("/*"):
        suffix = "/*"
    return outputs[f"{name}Ref"].rpartition("/")[2] + suffix

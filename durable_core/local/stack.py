"""Makes the tables, buckets, queues and buses of a template at the local endpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from durable_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from durable_core.local.aws_endpoint import AwsEndpoint
    from durable_core.local.template import Reduced


def make_stack(
    aws: AwsEndpoint,
    reduced: Reduced,
    name: str,
    *,
    parameters: Mapping[str, str],
    visibility_s: Mapping[str, int],
) -> dict[str, str]:
    """Makes them.

    Args:
        aws: Where.
        reduced: What.
        name: Of the stack.
        parameters: That differ from their defaults.
        visibility_s: For queues by name; those of the template are for its time-outs.

    Returns:
        The stack's outputs.

    Raises:
        UsageError: There is no such parameter.
    """
    unknown = sorted(set(parameters) - set(reduced.parameters))
    if unknown:
        raise UsageError(
            f"the template has no parameter {', '.join(unknown)}",
            remedy=f"It has {', '.join(reduced.parameters)}",
        )
    template: dict[str, Any] = json.loads(json.dumps(reduced.template))
    for queue, seconds in visibility_s.items():
        template["Resources"][queue].setdefault("Properties", {})["VisibilityTimeout"] = seconds
    client = aws.client("cloudformation")
    client.create_stack(
        StackName=name,
        TemplateBody=json.dumps(template),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
    )
    (made,) = client.describe_stacks(StackName=name)["Stacks"]
    return {one["OutputKey"]: str(one["OutputValue"]) for one in made.get("Outputs", ())}

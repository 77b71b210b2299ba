"""What an alarm of the template reads in log lines of CloudWatch's embedded metric format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def metric_lines(log: str) -> list[dict[str, Any]]:
    """The lines of a log that are metrics."""
    return [json.loads(line) for line in log.splitlines() if line.startswith('{"_aws"')]


def readings(
    alarm: Mapping[str, Any], lines: Iterable[Mapping[str, Any]], parameters: Mapping[str, str]
) -> list[float]:
    """The values of an alarm's metric: of its namespace and name, under exactly its dimensions.

    Args:
        alarm: Its properties in the template.
        lines: Metrics.
        parameters: Of the stack.
    """
    watched = {one["Name"]: parameters[one["Value"]["Ref"]] for one in alarm["Dimensions"]}
    return [
        line[alarm["MetricName"]]
        for line in lines
        for told in line["_aws"]["CloudWatchMetrics"]
        if told["Namespace"] == alarm["Namespace"]
        and alarm["MetricName"] in [one["Name"] for one in told["Metrics"]]
        and sorted(watched) in [sorted(names) for names in told["Dimensions"]]
        and all(line[name] == value for name, value in watched.items())
    ]


def exceeds(alarm: Mapping[str, Any], values: Iterable[float]) -> bool:
    """Whether any of them is over the alarm's threshold."""
    assert (alarm["Statistic"], alarm["ComparisonOperator"]) == ("Maximum", "GreaterThanThreshold")
    return any(value > alarm["Threshold"] for value in values)

"""What the template has to be like: each rule gives its complaints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from durable_core.aws.table import EXPIRES_AT, differences

Template = dict[str, Any]
Rule = Callable[[Template], Iterator[str]]
RULES: list[Rule] = []

RUN_CRASH_LIMIT = 5
# Actions for which IAM knows no resource.
WITHOUT_RESOURCE = {"xray:PutTelemetryRecords", "xray:PutTraceSegments"}
# What a function has that Lambda itself asks for in its name.
OF_THE_TRIGGER = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}


def rule(check: Rule) -> Rule:
    RULES.append(check)
    return check


def of_type(template: Template, kind: str) -> dict[str, dict[str, Any]]:
    """Resources of a type, by name."""
    return {name: one for name, one in template["Resources"].items() if one["Type"] == kind}


def functions(template: Template) -> dict[str, dict[str, Any]]:
    """The properties of each function, with those that all share."""
    shared = template["Globals"]["Function"]
    return {
        name: {
            **shared,
            **one["Properties"],
            "Environment": variables(template, name),
            "LoggingConfig": {**shared["LoggingConfig"], **one["Properties"].get("LoggingConfig", {})},
        }
        for name, one in of_type(template, "AWS::Serverless::Function").items()
    }


def variables(template: Template, name: str) -> dict[str, Any]:
    shared = template["Globals"]["Function"].get("Environment", {}).get("Variables", {})
    own = template["Resources"][name]["Properties"].get("Environment", {}).get("Variables", {})
    return {**shared, **own}


def events(function: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one["Properties"] for one in function.get("Events", {}).values() if one["Type"] == kind]


def logical_id(value: Any) -> str:
    return value["Ref"] if "Ref" in value else value["Fn::GetAtt"][0]


def role_of(template: Template, function: dict[str, Any]) -> dict[str, Any]:
    return template["Resources"][logical_id(function["Role"])]["Properties"]


def statements(role: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All statements of a role, also those under a condition."""
    for policy in role.get("Policies", ()):
        for one in policy["PolicyDocument"]["Statement"]:
            yield from [one] if "Fn::If" not in one else [s for s in one["Fn::If"][1:] if "Effect" in s]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@rule
def functions_run_on_arm64_with_python_313_and_are_traced(template: Template) -> Iterator[str]:
    for name, function in functions(template).items():
        if function["Runtime"] != "python3.13" or function["Architectures"] != ["arm64"]:
            yield f"{name} is for {function['Runtime']} on {function['Architectures']}"
        if function.get("Tracing") != "Active":
            yield f"{name} isn't traced"
        if function["Handler"] != "app.handler":
            yield f"{name} has the handler {function['Handler']}"


@rule
def every_function_has_a_role_of_its_own_without_wildcards(template: Template) -> Iterator[str]:
    roles = [json.dumps(function.get("Role")) for function in functions(template).values()]
    for name, function in functions(template).items():
        if (
            function.get("Policies")
            or "Role" not in function
            or roles.count(json.dumps(function["Role"])) > 1
        ):
            yield f"{name} has no role of its own"
            continue
        role = role_of(template, function)
        if role.get("ManagedPolicyArns"):
            yield f"{name} has managed policies, which allow more than it needs"
        for one in statements(role):
            actions = set(as_list(one["Action"]))
            if any("*" in action for action in actions) or "NotAction" in one:
                yield f"{name} may do {sorted(actions)}"
            if "*" in as_list(one["Resource"]) and not actions <= WITHOUT_RESOURCE:
                yield f"{name} may {sorted(actions)} on everything"


@rule
def a_trigger_needs_its_permissions_and_no_other_queue(template: Template) -> Iterator[str]:
    for name, function in functions(template).items():
        queues = {logical_id(one["Queue"]) for one in events(function, "SQS")}
        may = {
            logical_id(resource)
            for one in statements(role_of(template, function))
            if set(as_list(one["Action"])) & OF_THE_TRIGGER
            for resource in as_list(one["Resource"])
        }
        if may != queues:
            yield f"{name} may receive from {sorted(may)}, and is triggered by {sorted(queues)}"


@rule
def the_table_is_the_one_that_durable_init_makes(template: Template) -> Iterator[str]:
    for name, one in of_type(template, "AWS::DynamoDB::Table").items():
        properties = one["Properties"]
        yield from (f"{name}: {wrong}" for wrong in differences(properties))
        if properties.get("BillingMode") != "PAY_PER_REQUEST":
            yield f"{name} isn't on demand"
        if not properties.get("PointInTimeRecoverySpecification", {}).get("PointInTimeRecoveryEnabled"):
            yield f"{name} has no backups"
        if properties.get("TimeToLiveSpecification") != {"AttributeName": EXPIRES_AT, "Enabled": True}:
            yield f"{name} doesn't let tombstones expire"
        if not properties.get("SSESpecification", {}).get("SSEEnabled"):
            yield f"{name} isn't encrypted"


@rule
def what_holds_records_outlives_the_stack(template: Template) -> Iterator[str]:
    for kind in ("AWS::DynamoDB::Table", "AWS::S3::Bucket"):
        for name, one in of_type(template, kind).items():
            if one.get("DeletionPolicy") != "Retain" or one.get("UpdateReplacePolicy") != "Retain":
                yield f"{name} is deleted with the stack"


@rule
def buckets_are_private_encrypted_versioned_and_by_tls_only(template: Template) -> Iterator[str]:
    for name, one in of_type(template, "AWS::S3::Bucket").items():
        properties = one["Properties"]
        if set(properties.get("PublicAccessBlockConfiguration", {}).values()) != {True}:
            yield f"{name} isn't private"
        if "BucketEncryption" not in properties:
            yield f"{name} isn't encrypted"
        if properties.get("VersioningConfiguration") != {"Status": "Enabled"}:
            yield f"{name} isn't versioned"
        policies = [
            statement
            for policy in of_type(template, "AWS::S3::BucketPolicy").values()
            if logical_id(policy["Properties"]["Bucket"]) == name
            for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        ]
        if not any(
            one["Effect"] == "Deny" and one.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
            for one in policies
        ):
            yield f"{name} may be asked without TLS"


@rule
def no_lifecycle_deletes_current_objects(template: Template) -> Iterator[str]:
    for name, one in of_type(template, "AWS::S3::Bucket").items():
        rules = one["Properties"].get("LifecycleConfiguration", {}).get("Rules", [])
        done = {key for each in rules for key in each}
        if done & {"ExpirationInDays", "ExpirationDate", "Transitions", "Transition"}:
            yield f"{name} deletes or moves outputs of committed steps by their age"
        if not {"AbortIncompleteMultipartUpload", "NoncurrentVersionExpiration"} <= done:
            yield f"{name} keeps unfinished uploads or old versions for ever"


@rule
def queues_wait_long_enough_and_give_up_after_runs_do(template: Template) -> Iterator[str]:
    queues = of_type(template, "AWS::SQS::Queue")
    for name, function in functions(template).items():
        for trigger in events(function, "SQS"):
            queue = logical_id(trigger["Queue"])
            properties = queues[queue]["Properties"]
            if properties.get("VisibilityTimeout", 30) < 6 * function["Timeout"]:
                yield f"{queue} shows messages again while {name} may still be at work"
            redrive = properties.get("RedrivePolicy")
            if redrive is None:
                yield f"{queue} has no dead letters"
                continue
            if redrive["maxReceiveCount"] <= RUN_CRASH_LIMIT:
                yield f"{queue} gives up before a run fails for its crashes, and says why"
            letters = queues[logical_id(redrive["deadLetterTargetArn"])]["Properties"]
            if letters.get("MessageRetentionPeriod", 0) < properties.get("MessageRetentionPeriod", 345600):
                yield f"the dead letters of {queue} are kept for less time than its messages"


@rule
def queues_are_encrypted(template: Template) -> Iterator[str]:
    for name, one in of_type(template, "AWS::SQS::Queue").items():
        properties = one["Properties"]
        if "SqsManagedSseEnabled" not in properties or "KmsMasterKeyId" not in properties:
            yield f"{name} isn't encrypted"


@rule
def triggers_report_failures_one_by_one_and_are_bounded(template: Template) -> Iterator[str]:
    for name, function in functions(template).items():
        for trigger in events(function, "SQS"):
            if trigger.get("FunctionResponseTypes") != ["ReportBatchItemFailures"]:
                yield f"{name} can't say which messages failed"
            limit = trigger.get("ScalingConfig", {}).get("MaximumConcurrency")
            named = template["Parameters"].get(limit["Ref"], {}) if isinstance(limit, dict) else {}
            least = min(named.get("MinValue", 0), named.get("Default", 0)) if named else limit or 0
            if least < 2:
                yield f"{name} has no limit of at least 2 sandboxes"
            if name == "DriveRun" and trigger.get("BatchSize") != 1:
                yield f"{name} takes more than one run at a time"


@rule
def functions_that_send_to_their_own_queue_may_loop(template: Template) -> Iterator[str]:
    for name, function in functions(template).items():
        if events(function, "SQS") and function.get("RecursiveLoop") != "Allow":
            yield f"{name} would be stopped after about 16 hand-overs"


@rule
def logs_are_kept_for_a_time_that_is_chosen(template: Template) -> Iterator[str]:
    groups = of_type(template, "AWS::Logs::LogGroup")
    for name, function in functions(template).items():
        group = function["LoggingConfig"].get("LogGroup")
        if group is None or "RetentionInDays" not in groups.get(logical_id(group), {}).get("Properties", {}):
            yield f"the logs of {name} are kept for ever"


@rule
def dead_letters_and_stalled_runs_raise_an_alarm(template: Template) -> Iterator[str]:
    alarms = [one["Properties"] for one in of_type(template, "AWS::CloudWatch::Alarm").values()]
    watched = {
        logical_id(dimension["Value"])
        for alarm in alarms
        if alarm["MetricName"] == "ApproximateNumberOfMessagesVisible"
        for dimension in alarm["Dimensions"]
    }
    letters = {
        logical_id(one["Properties"]["RedrivePolicy"]["deadLetterTargetArn"])
        for one in of_type(template, "AWS::SQS::Queue").values()
        if "RedrivePolicy" in one["Properties"]
    }
    for function in functions(template).values():
        failed = function.get("EventInvokeConfig", {}).get("DestinationConfig", {}).get("OnFailure")
        letters |= {logical_id(failed["Destination"])} if failed else set()
    yield from (f"nobody is told of messages in {name}" for name in sorted(letters - watched))
    if not any(one["MetricName"] == "RunsStalled" and one["Namespace"] == "DurableCore" for one in alarms):
        yield "nobody is told of stalled runs"
    yield from ("an alarm tells nobody" for one in alarms if "AlarmTopicArn" not in json.dumps(one))


@rule
def requests_over_a_bus_that_fail_are_kept(template: Template) -> Iterator[str]:
    for name, function in functions(template).items():
        if not events(function, "EventBridgeRule"):
            continue
        config = function.get("EventInvokeConfig", {})
        failed = config.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")
        if failed is None:
            yield f"a request to {name} that fails is lost"
            continue
        may = [
            resource
            for one in statements(role_of(template, function))
            if "sqs:SendMessage" in as_list(one["Action"])
            for resource in as_list(one["Resource"])
        ]
        if failed not in may:
            yield f"{name} may not put its failed requests to {logical_id(failed)}"


@rule
def what_sam_local_overrides_is_declared(template: Template) -> Iterator[str]:
    for name in functions(template):
        declared = variables(template, name)
        if "DURABLE_STORE" not in declared:
            yield f"{name} has no DURABLE_STORE"
        if declared.get("AWS_ENDPOINT_URL") != "":
            yield f"{name} has no empty AWS_ENDPOINT_URL"


@rule
def the_api_asks_who_calls(template: Template) -> Iterator[str]:
    for name, one in of_type(template, "AWS::Serverless::HttpApi").items():
        auth = one["Properties"].get("Auth", {})
        if auth.get("DefaultAuthorizer") != "AWS_IAM" or auth.get("EnableIamAuthorizer") is not True:
            yield f"{name} is open to everybody"
    for name, function in functions(template).items():
        for event in events(function, "HttpApi"):
            if "ApiId" not in event or event.get("Auth"):
                yield f"{name} goes round the API's authorizer"


@rule
def parameters_are_there_and_used(template: Template) -> Iterator[str]:
    wanted = {"Stage", "LogLevel", "RetentionDays", "AlarmTopicArn", "Concurrency", "KmsKeyArn"}
    wanted |= {"LogRetentionDays", "ManifestBucket"}
    yield from (f"the parameter {name} is missing" for name in sorted(wanted - set(template["Parameters"])))
    text = json.dumps({name: part for name, part in template.items() if name != "Parameters"})
    for name in template["Parameters"]:
        if not re.search(rf'"Ref": "{name}"|\$\{{{name}\}}', text):
            yield f"the parameter {name} is used for nothing"


@rule
def a_key_of_ones_own_is_used_everywhere(template: Template) -> Iterator[str]:
    for kind in ("AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SQS::Queue"):
        for name, one in of_type(template, kind).items():
            if "KmsKeyArn" not in json.dumps(one):
                yield f"{name} doesn't take the key"
    for name, function in functions(template).items():
        if not any(
            {"Ref": "KmsKeyArn"} in as_list(one["Resource"])
            for one in statements(role_of(template, function))
        ):
            yield f"{name} may not use the key"


@rule
def maps_may_read_manifests_in_a_bucket_of_ones_own_and_nothing_else_may(template: Template) -> Iterator[str]:
    objects = {"Fn::Sub": "arn:${AWS::Partition}:s3:::${ManifestBucket}/*"}
    read = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": objects}
    for name, function in functions(template).items():
        may = [
            one
            for policy in role_of(template, function).get("Policies", ())
            for one in policy["PolicyDocument"]["Statement"]
            if "ManifestBucket" in json.dumps(one)
        ]
        # Without the condition a stack without such a bucket could not be deployed.
        wanted = [{"Fn::If": ["HasManifestBucket", read, {"Ref": "AWS::NoValue"}]}]
        if may != (wanted if events(function, "SQS") else []):
            yield f"{name} may do {may} in the bucket of manifests"

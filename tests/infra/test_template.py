"""What `template.yaml` deploys: it passes SAM's and CloudFormation's own checks, and our rules."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from durable_core.aws.environment import Environment
from durable_core.local.template import reduce
from tests.artefacts import ROOT, sam_python
from tests.infra import rules
from tests.infra.rules import RULES, Rule, Template, functions, variables

# Run by the Python that has SAM: prints the template as CloudFormation gets it.
TRANSLATE = """
import json, sys
from unittest.mock import patch
from samtranslator.public.translator import ManagedPolicyLoader
from samtranslator.translator.transform import transform

class NoPolicies:
    def load(self): return {}

template = json.load(sys.stdin)
for one in template["Resources"].values():
    one.pop("Metadata", None)
    if one["Type"] == "AWS::Serverless::Function":
        one["Properties"]["CodeUri"] = "s3://bucket/key"
parameters = {name: one.get("Default") for name, one in template["Parameters"].items()}
print(json.dumps(transform(template, parameters, NoPolicies())))
"""


def linted(template: Template, folder: Path) -> str:
    """What cfn-lint says of the template that SAM makes of one; empty if nothing."""
    python = sam_python()
    environment = {**os.environ, "AWS_DEFAULT_REGION": "eu-central-1"}
    translated = subprocess.run(
        [python, "-c", TRANSLATE],
        input=json.dumps(template),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert translated.returncode == 0, translated.stderr
    file = folder / "translated.json"
    file.write_text(translated.stdout)
    # W3005 tells of dependencies that SAM writes out although references imply them.
    lint = [python.with_name("cfn-lint"), "--regions", "eu-central-1", "--ignore-checks", "W3005", "--", file]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_sam_finds_the_template_valid() -> None:
    sam_python()
    done = subprocess.run(
        ["bash", "scripts/sam.sh", "validate", "--lint"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_what_sam_makes_of_the_template_passes_cfn_lint(template: Template, tmp_path: Path) -> None:
    assert linted(template, tmp_path) == ""


@pytest.mark.slow
def test_cfn_lint_finds_what_sam_lets_through(template: Template, tmp_path: Path) -> None:
    resources = template["Resources"]
    resources["DriveRun"]["Properties"]["RecursiveLoop"] = "Maybe"
    resources["StartRun"]["Properties"]["Runtime"] = "python9.9"
    resources["WorkChunk"]["Properties"]["Environment"]["Variables"]["DURABLE_X"] = {"Ref": "Nobody"}
    told = linted(template, tmp_path)
    assert "Maybe" in told
    assert "python9.9" in told
    assert "Nobody" in told


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_template_keeps_our_rules(rule: Rule, template: Template) -> None:
    assert list(rule(template)) == []


def change(path: str, value: Any = ...) -> Callable[[Template], None]:
    """Sets what is at a path of keys, or takes it away."""

    def make(template: Template) -> None:
        *parents, last = path.split("/")
        place: Any = template
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        key = int(last) if isinstance(place, list) else last
        if value is ...:
            del place[key]
        else:
            place[key] = value

    return make


FUNCTION = "Globals/Function"
DRIVE = "Resources/DriveRun/Properties"
DRIVE_ROLE = "Resources/DriveRunRole/Properties"
DRIVE_STATEMENTS = f"{DRIVE_ROLE}/Policies/0/PolicyDocument/Statement"
TABLE = "Resources/RunsTable"
BUCKET = "Resources/OutputsBucket"
QUEUE = "Resources/DriveQueue/Properties"
BROKEN: list[tuple[Rule, Callable[[Template], None], str]] = [
    (rules.functions_run_on_arm64_with_python_313_and_are_traced, change(f"{FUNCTION}/Tracing"), "traced"),
    (
        rules.functions_run_on_arm64_with_python_313_and_are_traced,
        change(f"{DRIVE}/Architectures", ["x86_64"]),
        "DriveRun is for python3.13 on ['x86_64']",
    ),
    (
        rules.functions_run_on_arm64_with_python_313_and_are_traced,
        change(f"{DRIVE}/Handler", "drive.handler"),
        "drive.handler",
    ),
    (
        rules.every_function_has_a_role_of_its_own_without_wildcards,
        change(f"{DRIVE}/Role", {"Fn::GetAtt": ["WorkChunkRole", "Arn"]}),
        "no role of its own",
    ),
    (
        rules.every_function_has_a_role_of_its_own_without_wildcards,
        change(f"{DRIVE_ROLE}/ManagedPolicyArns", ["arn:aws:iam::aws:policy/AmazonS3FullAccess"]),
        "managed policies",
    ),
    (
        rules.every_function_has_a_role_of_its_own_without_wildcards,
        change(f"{DRIVE_STATEMENTS}/0/Action", ["dynamodb:*"]),
        "may do",
    ),
    (
        rules.every_function_has_a_role_of_its_own_without_wildcards,
        change(f"{DRIVE_STATEMENTS}/0/Resource", "*"),
        "on everything",
    ),
    (
        rules.a_trigger_needs_its_permissions_and_no_other_queue,
        change(f"{DRIVE}/Events/Drive/Properties/Queue", {"Fn::GetAtt": ["WorkQueue", "Arn"]}),
        "may receive from",
    ),
    (rules.the_table_is_the_one_that_durable_init_makes, change(f"{TABLE}/Properties/BillingMode"), "demand"),
    (
        rules.the_table_is_the_one_that_durable_init_makes,
        change(f"{TABLE}/Properties/GlobalSecondaryIndexes/0"),
        "by_due is missing",
    ),
    (
        rules.the_table_is_the_one_that_durable_init_makes,
        change(f"{TABLE}/Properties/PointInTimeRecoverySpecification"),
        "no backups",
    ),
    (
        rules.the_table_is_the_one_that_durable_init_makes,
        change(f"{TABLE}/Properties/TimeToLiveSpecification/AttributeName", "ttl"),
        "expire",
    ),
    (
        rules.the_table_is_the_one_that_durable_init_makes,
        change(f"{TABLE}/Properties/SSESpecification"),
        "encrypted",
    ),
    (rules.what_holds_records_outlives_the_stack, change(f"{TABLE}/DeletionPolicy"), "deleted"),
    (rules.what_holds_records_outlives_the_stack, change(f"{BUCKET}/UpdateReplacePolicy"), "deleted"),
    (
        rules.buckets_are_private_encrypted_versioned_and_by_tls_only,
        change(f"{BUCKET}/Properties/PublicAccessBlockConfiguration/BlockPublicAcls", False),
        "private",
    ),
    (
        rules.buckets_are_private_encrypted_versioned_and_by_tls_only,
        change(f"{BUCKET}/Properties/BucketEncryption"),
        "encrypted",
    ),
    (
        rules.buckets_are_private_encrypted_versioned_and_by_tls_only,
        change(f"{BUCKET}/Properties/VersioningConfiguration"),
        "versioned",
    ),
    (
        rules.buckets_are_private_encrypted_versioned_and_by_tls_only,
        change("Resources/OutputsBucketPolicy"),
        "without TLS",
    ),
    (
        rules.no_lifecycle_deletes_current_objects,
        change(f"{BUCKET}/Properties/LifecycleConfiguration/Rules/0/ExpirationInDays", 30),
        "by their age",
    ),
    (
        rules.no_lifecycle_deletes_current_objects,
        change(f"{BUCKET}/Properties/LifecycleConfiguration"),
        "for ever",
    ),
    (
        rules.queues_wait_long_enough_and_give_up_after_runs_do,
        change(f"{QUEUE}/VisibilityTimeout", 5399),
        "still be at work",
    ),
    (
        rules.queues_wait_long_enough_and_give_up_after_runs_do,
        change(f"{QUEUE}/RedrivePolicy"),
        "no dead letters",
    ),
    (
        rules.queues_wait_long_enough_and_give_up_after_runs_do,
        change(f"{QUEUE}/RedrivePolicy/maxReceiveCount", 5),
        "gives up",
    ),
    (
        rules.queues_wait_long_enough_and_give_up_after_runs_do,
        change("Resources/DriveDeadLetters/Properties/MessageRetentionPeriod", 345600),
        "less time",
    ),
    (rules.queues_are_encrypted, change(f"{QUEUE}/SqsManagedSseEnabled"), "encrypted"),
    (
        rules.triggers_report_failures_one_by_one_and_are_bounded,
        change(f"{DRIVE}/Events/Drive/Properties/FunctionResponseTypes"),
        "which messages failed",
    ),
    (
        rules.triggers_report_failures_one_by_one_and_are_bounded,
        change(f"{DRIVE}/Events/Drive/Properties/ScalingConfig"),
        "at least 2",
    ),
    (
        rules.triggers_report_failures_one_by_one_and_are_bounded,
        change("Parameters/Concurrency/MinValue", 1),
        "at least 2",
    ),
    (
        rules.triggers_report_failures_one_by_one_and_are_bounded,
        change(f"{DRIVE}/Events/Drive/Properties/BatchSize", 10),
        "more than one run",
    ),
    (
        rules.functions_that_send_to_their_own_queue_may_loop,
        change(f"{DRIVE}/RecursiveLoop"),
        "16 hand-overs",
    ),
    (rules.logs_are_kept_for_a_time_that_is_chosen, change(f"{DRIVE}/LoggingConfig"), "for ever"),
    (
        rules.logs_are_kept_for_a_time_that_is_chosen,
        change("Resources/DriveRunLogs/Properties/RetentionInDays"),
        "for ever",
    ),
    (
        rules.dead_letters_and_stalled_runs_raise_an_alarm,
        change("Resources/DriveDeadLettersAlarm"),
        "DriveDeadLetters",
    ),
    (
        rules.dead_letters_and_stalled_runs_raise_an_alarm,
        change("Resources/RequestDeadLettersAlarm"),
        "RequestDeadLetters",
    ),
    (
        rules.dead_letters_and_stalled_runs_raise_an_alarm,
        change("Resources/StalledRunsAlarm"),
        "stalled runs",
    ),
    (
        rules.dead_letters_and_stalled_runs_raise_an_alarm,
        change("Resources/StalledRunsAlarm/Properties/AlarmActions"),
        "tells nobody",
    ),
    (
        rules.requests_over_a_bus_that_fail_are_kept,
        change("Resources/StartRun/Properties/EventInvokeConfig"),
        "is lost",
    ),
    (
        rules.requests_over_a_bus_that_fail_are_kept,
        change(
            "Resources/StartRun/Properties/EventInvokeConfig/DestinationConfig/OnFailure/Destination",
            {"Fn::GetAtt": ["WorkDeadLetters", "Arn"]},
        ),
        "may not put",
    ),
    (
        rules.what_sam_local_overrides_is_declared,
        change(f"{FUNCTION}/Environment/Variables/DURABLE_STORE"),
        "DURABLE_STORE",
    ),
    (
        rules.what_sam_local_overrides_is_declared,
        change(f"{FUNCTION}/Environment/Variables/AWS_ENDPOINT_URL"),
        "AWS_ENDPOINT_URL",
    ),
    (rules.the_api_asks_who_calls, change("Resources/RunsApi/Properties/Auth"), "open to everybody"),
    (
        rules.the_api_asks_who_calls,
        change("Resources/StartRun/Properties/Events/Http/Properties/Auth", {"Authorizer": "NONE"}),
        "goes round",
    ),
    (rules.parameters_are_there_and_used, change("Parameters/Stage"), "Stage is missing"),
    (rules.parameters_are_there_and_used, change("Parameters/Idle", {"Type": "String"}), "used for nothing"),
    (
        rules.maps_may_read_manifests_in_a_bucket_of_ones_own_and_nothing_else_may,
        change(f"{DRIVE_STATEMENTS}/3"),
        "DriveRun may do []",
    ),
    (
        rules.maps_may_read_manifests_in_a_bucket_of_ones_own_and_nothing_else_may,
        change(f"{DRIVE_STATEMENTS}/3/Fn::If/1/Action", ["s3:GetObject", "s3:PutObject"]),
        "s3:PutObject",
    ),
    (rules.a_key_of_ones_own_is_used_everywhere, change(f"{QUEUE}/KmsMasterKeyId"), "DriveQueue"),
    (rules.a_key_of_ones_own_is_used_everywhere, change(DRIVE_STATEMENTS, []), "DriveRun may not"),
]


@pytest.mark.parametrize(
    ("rule", "spoil", "told"),
    BROKEN,
    ids=[f"{rule.__name__}-{number}" for number, (rule, _, _) in enumerate(BROKEN)],
)
def test_a_broken_template_is_found(
    rule: Rule, spoil: Callable[[Template], None], told: str, template: Template
) -> None:
    spoil(template)
    assert any(told in complaint for complaint in rule(template))


def test_every_rule_is_shown_to_bite() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


# ---- What the code asks of the template ----

NO_VARIABLES = {"DURABLE_ERROR"}  # the code of an error


def variables_read() -> set[str]:
    """The variables of ours that the code in a zip names, besides the fields of the functions' settings."""
    found = {f"DURABLE_{name.upper()}" for name in Environment.model_fields}
    for path in (ROOT / "durable_core").rglob("*.py"):
        if path.relative_to(ROOT / "durable_core").parts[0] not in ("cli", "local", "testing", "report"):
            found |= set(re.findall(r'"(DURABLE_[A-Z_]*[A-Z])"', path.read_text("utf-8")))
    return found - NO_VARIABLES


def test_every_variable_that_is_read_is_declared_and_the_other_way_round(template: Template) -> None:
    declared = {name for one in functions(template) for name in variables(template, one)}
    assert variables_read() == {name for name in declared if name.startswith("DURABLE_")}


START = "import sys; sys.path.insert(0, sys.argv[1]); import app; assert callable(app.handler)"


def test_an_empty_endpoint_means_aws_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    client = boto3.client(
        "sqs", region_name="eu-central-1", aws_access_key_id="me", aws_secret_access_key="none"
    )
    assert client.meta.endpoint_url == "https://sqs.eu-central-1.amazonaws.com"
    client.close()


@pytest.mark.parametrize(
    "name", ["StartRun", "SignalRun", "DriveRun", "WorkChunk", "SweepRuns", "InspectRun"]
)
def test_a_function_starts_with_the_variables_that_the_template_gives_it(
    name: str, template: Template
) -> None:
    values = {"DURABLE_STORE": "dynamodb://table?bucket=bucket&region=us-east-1"}
    given = {
        variable: values.get(variable, "7" if variable.endswith("DAYS") else "https://example.invalid/x")
        for variable in variables(template, name)
        if variable != "AWS_ENDPOINT_URL"
    }
    given |= {"DURABLE_LOG_LEVEL": "info", "DURABLE_LOG_FORMAT": "json", "AWS_ENDPOINT_URL": ""}
    done = subprocess.run(
        [sys.executable, "-c", START, str(ROOT / functions(template)[name]["CodeUri"])],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "AWS_REGION": "us-east-1", **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_function_has_its_folder_and_its_build_target(template: Template) -> None:
    makefile = (ROOT / "infra" / "build" / "Makefile").read_text("utf-8")
    targets = dict(re.findall(r"^(\w+) := (\w+)$", makefile, re.M))
    for name, function in functions(template).items():
        folder = function["CodeUri"]
        assert targets[name] == folder.removeprefix("functions/")
        assert (ROOT / folder / "app.py").is_file()
        assert template["Resources"][name]["Metadata"] == {
            "BuildMethod": "makefile",
            "ContextPath": "infra/build",
        }
    folders = {path.parent.name for path in (ROOT / "functions").glob("*/app.py")}
    assert folders == {
        function["CodeUri"].removeprefix("functions/") for function in functions(template).values()
    }


def test_handlers_are_short_and_nothing_else() -> None:
    for path in (ROOT / "functions").glob("*/app.py"):
        assert len(path.read_text("utf-8").splitlines()) <= 60
        assert any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "handler"
            for node in ast.parse(path.read_text("utf-8")).body
        )


# ---- What stands beside the template ----


def test_samconfig_sets_parameters_that_there_are(template: Template) -> None:
    config = tomllib.loads((ROOT / "samconfig.toml").read_text("utf-8"))
    for stage in ("dev", "prod"):
        given = config[stage]["deploy"]["parameters"]["parameter_overrides"].split()
        pairs = dict(one.split("=") for one in given)
        assert set(pairs) <= set(template["Parameters"])
        assert pairs["Stage"] == stage
        for name, value in pairs.items():
            allowed = template["Parameters"][name].get("AllowedValues")
            assert allowed is None or value in map(str, allowed)
            assert int(value) >= template["Parameters"][name].get("MinValue", 0) if value.isdigit() else True


def test_env_json_overrides_variables_that_there_are(template: Template) -> None:
    overrides = json.loads((ROOT / "infra" / "local" / "env.json").read_text("utf-8"))
    assert set(overrides) == set(functions(template))
    for name, given in overrides.items():
        assert set(given) <= set(variables(template, name))
        assert {"DURABLE_STORE", "AWS_ENDPOINT_URL"} <= set(given)


def test_the_local_cloud_knows_every_function_and_trigger(template: Template) -> None:
    reduced = reduce(template)
    assert set(reduced.functions) == set(functions(template))
    for name, function in functions(template).items():
        spec = reduced.functions[name]
        triggers = len(spec.queues) + len(spec.bridges) + len(spec.routes) + (spec.every_s is not None)
        assert triggers == len(function.get("Events", {}))


def test_no_yaml_is_used_that_cloudformation_does_not_read() -> None:
    text = (ROOT / "template.yaml").read_text("utf-8")
    assert re.findall(r"^[^#\n]*(?:[:-] [&*]\w+|<<:)", text, re.M) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "events").glob("*.json")), ids=lambda path: path.stem
)
def test_an_event_for_sam_local_is_json(path: Path) -> None:
    assert isinstance(json.loads(path.read_text("utf-8")), dict)

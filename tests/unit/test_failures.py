"""Errors of AWS by their code: refused, gone, to be tried again, or to be mended - with place and remedy."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError, ProfileNotFound

from durable_core.aws.failures import ConditionRefused, NotThere, explained
from durable_core.errors import JournalUnavailable, OutputTooLarge, StoreMisconfigured, StoreNotFound

ITEM = {"TableName": "runs", "Key": {"pk": {"S": "RUN#r1"}, "sk": {"S": "STEP#s1"}}}
OBJECT = {"Bucket": "outputs", "Key": "runs/r1/a"}
KMS = "User: arn:aws:iam::1:role/r is not authorized to perform: kms:Decrypt on the resource"


def answered(code: str, message: str = "", status: int = 400) -> ClientError:
    error: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(error, "Operation")


def told(
    code: str, message: str = "", status: int = 400, *, service: str = "dynamodb", operation: str = "put_item"
) -> Exception:
    request = OBJECT if service == "s3" else ITEM
    found = explained(answered(code, message, status), service, operation, request)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ThrottlingException", 400),
        ("ProvisionedThroughputExceededException", 400),
        ("RequestLimitExceeded", 400),
        ("InternalServerError", 500),
        ("SlowDown", 503),
        ("RequestTimeout", 400),
        ("TransactionInProgressException", 400),
        ("NeverHeardOf", 502),
        ("NeverHeardOf", 429),
        ("", 500),
    ],
)
def test_what_passes_by_itself_can_be_tried_again(code: str, status: int) -> None:
    assert isinstance(told(code, status=status), JournalUnavailable)


@pytest.mark.parametrize(
    ("code", "message", "operation", "remedy"),
    [
        ("AccessDeniedException", "not authorized", "put_item", "dynamodb:PutItem"),
        ("AccessDeniedException", "not authorized", "transact_write_items", "ConditionCheckItem"),
        ("AccessDeniedException", KMS, "put_item", "kms:Decrypt"),
        (
            "ValidationException",
            "The table does not have the specified index: by_due",
            "query",
            "durable init",
        ),
        ("SomethingElse", "odd", "put_item", "durable init"),
        ("ExpiredTokenException", "expired", "put_item", "Renew"),
        ("UnrecognizedClientException", "invalid", "put_item", "Renew"),
        ("InvalidSignatureException", "Signature expired", "put_item", "clock"),
    ],
)
def test_what_somebody_has_to_mend_names_table_item_and_remedy(
    code: str, message: str, operation: str, remedy: str
) -> None:
    error = told(code, message, operation=operation)
    assert isinstance(error, StoreMisconfigured)
    assert not error.retryable
    assert "the table runs (item 'RUN#r1 STEP#s1')" in str(error)
    assert remedy in str(error)


@pytest.mark.parametrize(
    ("code", "message", "operation", "remedy"),
    [
        ("AccessDenied", "Access Denied", "get_object", "s3:ListBucket"),
        ("AccessDenied", "Access Denied", "put_object", "s3:PutObject"),
        ("AccessDenied", "Access Denied", "list_objects_v2", "s3:ListBucket"),
        ("AccessDenied", KMS, "get_object", "KMS"),
        ("KMS.DisabledException", "key is disabled", "get_object", "enabled"),
        ("InvalidAccessKeyId", "no such key", "get_object", "Renew"),
        ("InvalidBucketName", "not valid", "get_object", "durable init"),
    ],
)
def test_what_somebody_has_to_mend_names_bucket_object_and_remedy(
    code: str, message: str, operation: str, remedy: str
) -> None:
    error = told(code, message, 403, service="s3", operation=operation)
    assert isinstance(error, StoreMisconfigured)
    assert "the bucket outputs (object 'runs/r1/a')" in str(error)
    assert remedy in str(error)


@pytest.mark.parametrize(
    ("code", "service"), [("ResourceNotFoundException", "dynamodb"), ("NoSuchBucket", "s3")]
)
def test_a_table_or_bucket_that_is_not_there_is_no_missing_item(code: str, service: str) -> None:
    error = told(code, "not found", 404, service=service)
    assert isinstance(error, StoreNotFound)
    assert "durable init" in str(error)


def test_a_missing_object_is_told_from_a_missing_bucket_without_a_body_too() -> None:
    assert isinstance(told("NoSuchKey", "", 404, service="s3"), NotThere)
    assert isinstance(told("404", "", 404, service="s3", operation="head_object"), NotThere)
    bucket = explained(answered("404", "", 404), "s3", "head_bucket", {"Bucket": "outputs"})
    assert isinstance(bucket, StoreNotFound)


@pytest.mark.parametrize(
    "message",
    [
        "Item size has exceeded the maximum allowed size",
        "Item size to update has exceeded the maximum allowed size",
    ],
)
def test_an_item_over_the_limit_is_too_large(message: str) -> None:
    error = told("ValidationException", message)
    assert isinstance(error, OutputTooLarge)
    assert "400 KB" in str(error)


@pytest.mark.parametrize("code", ["PreconditionFailed", "ConditionalRequestConflict"])
def test_a_put_over_an_object_is_refused(code: str) -> None:
    error = told(code, status=412, service="s3")
    assert isinstance(error, ConditionRefused)
    assert error.item is None


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (["None", "ThrottlingError"], JournalUnavailable),
        (["ProvisionedThroughputExceeded", "None"], JournalUnavailable),
        (["TransactionConflict", "None"], JournalUnavailable),
        (["ConditionalCheckFailed", "TransactionConflict"], ConditionRefused),
        (["ValidationError", "None"], StoreMisconfigured),
        ([], StoreMisconfigured),
    ],
)
def test_a_cancelled_transaction_is_judged_by_its_reasons(reasons: list[str], kind: type[Exception]) -> None:
    error: Any = {
        "Error": {"Code": "TransactionCanceledException", "Message": "cancelled"},
        "CancellationReasons": [{"Code": reason} for reason in reasons],
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    request = {"TransactItems": [{"Put": {"TableName": "runs", "Item": ITEM["Key"]}}]}
    found = explained(ClientError(error, "x"), "dynamodb", "transact_write_items", request)
    assert isinstance(found, kind)


def test_what_botocore_refuses_itself_is_final() -> None:
    for error in (NoCredentialsError(), ProfileNotFound(profile="x"), ParamValidationError(report="bad")):
        assert isinstance(explained(error, "dynamodb", "get_item", ITEM), StoreMisconfigured)


def test_an_error_of_somebody_else_is_not_explained() -> None:
    assert explained(ValueError("x"), "dynamodb", "get_item", ITEM) is None

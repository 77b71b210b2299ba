"""What an error of AWS means: a condition that didn't hold, something to try again, or something to mend.

Errors are told apart by their code. What a message of AWS says is shown, except when it is about credentials:
such a message may quote the request with its session token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.errors import (
    DurableError,
    JournalUnavailable,
    OutputTooLarge,
    StoreMisconfigured,
    StoreNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

CONDITION_FAILED: Final = "ConditionalCheckFailed"

_REFUSED: Final = {
    "ConditionalCheckFailedException",
    "PreconditionFailed",
    "412",
    "ConditionalRequestConflict",  # another put of the object is being decided now
}
_CONFLICTS: Final = {"TransactionConflictException", "TransactionInProgressException", "TransactionConflict"}
_UNAVAILABLE: Final = _CONFLICTS | {
    "InternalError",
    "InternalServerError",
    "ContinuousBackupsUnavailableException",  # of a table that was just made
    "LimitExceededException",  # of tables being made at once
    "OperationAborted",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceeded",
    "ProvisionedThroughputExceededException",
    "ReplicatedWriteConflictException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ResourceInUseException",  # the table is being made or changed now
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingError",
    "ThrottlingException",
    "TooManyRequestsException",
}
_CREDENTIALS: Final = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "InvalidToken",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
}
_CREDENTIALS_HERE: Final = {  # exceptions of botocore, which found none that it could use
    "ConfigParseError",
    "CredentialRetrievalError",
    "NoAuthTokenError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "SSOTokenLoadError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
}
_FORBIDDEN: Final = {
    "AccessDenied",
    "AccessDeniedException",
    "AllAccessDisabled",
    "UnauthorizedOperation",
    "403",
}
_NO_STORE: Final = {
    "AWS.SimpleQueueService.NonExistentQueue",
    "NoSuchBucket",
    "QueueDoesNotExist",
    "ResourceNotFound",
    "ResourceNotFoundException",
    "TableNotFoundException",
}
_DEPLOYED: Final = ("sqs", "events")  # what a template makes, not `durable init`
_ACTIONS: Final = {  # permissions of S3 that aren't named like the operation
    "get_bucket_encryption": "GetEncryptionConfiguration",
    "get_bucket_lifecycle_configuration": "GetLifecycleConfiguration",
    "get_public_access_block": "GetBucketPublicAccessBlock",
    "head_bucket": "ListBucket",
    "head_object": "GetObject",
    "list_objects_v2": "ListBucket",
    "put_bucket_encryption": "PutEncryptionConfiguration",
    "put_bucket_lifecycle_configuration": "PutLifecycleConfiguration",
    "put_public_access_block": "PutBucketPublicAccessBlock",
}
_TOO_LARGE: Final = ("item size has exceeded", "item size to update has exceeded")
_TRANSIENT_HERE: Final = {  # exceptions of what sends requests: no answer came, or not the whole of it
    "ChecksumError",
    "ClientError",
    "ConnectionError",
    "HTTPClientError",
    "HTTPError",  # of urllib3, when a body breaks off
    "IncompleteReadError",
    "ResponseParserError",
}


class ConditionRefused(Exception):
    """A condition didn't hold, and nothing was written.

    Attributes:
        reasons: The code for each item of the request; `CONDITION_FAILED` where its condition didn't hold,
            `None` where it did.
        items: What stood in the way, for each item of the request: the item as DynamoDB returned it, or None
            where nothing did or nothing is there.
    """

    def __init__(self, reasons: list[str | None], items: list[dict[str, Any] | None]) -> None:
        super().__init__(", ".join(reason or "-" for reason in reasons))
        self.reasons = reasons
        self.items = items

    @property
    def item(self) -> dict[str, Any] | None:
        """What stood in the way of a request about one item."""
        return self.items[0]


class NotThere(Exception):
    """S3 has no such object, or a bucket has no such setting."""


def is_conflict(error: Exception) -> bool:
    """Whether another transaction was at work on the same item, so that the same request is sent again."""
    code = _code(error)
    if code == "TransactionCanceledException":
        reasons = _reasons(error)
        return CONDITION_FAILED not in reasons and not _CONFLICTS.isdisjoint(filter(None, reasons))
    return code in _CONFLICTS


def explained(
    error: Exception,
    service: str,
    operation: str,
    request: Mapping[str, Any],
    *,
    waited_s: float = 0.0,
) -> Exception | None:
    """What to raise instead of an error of botocore.

    Args:
        error: As botocore or aiohttp raised it.
        service: dynamodb, s3, sqs or events.
        operation: As boto3 names its method.
        request: What was sent.
        waited_s: How long the call took, with botocore's own retries.

    Returns:
        `ConditionRefused`, `NotThere`, or an error of this package; None if it isn't an error of AWS.
    """
    place = _place(service, request)
    code = _code(error)
    if code is None:
        return _explained_here(error, place, waited_s)
    if code in _REFUSED:
        return ConditionRefused([CONDITION_FAILED], [getattr(error, "response", {}).get("Item")])
    if code == "TransactionCanceledException":
        reasons = _reasons(error)
        if CONDITION_FAILED in reasons:
            return ConditionRefused(reasons, [one.get("Item") for one in _cancellation(error)])
        code = next((reason for reason in reasons if reason), code)
    if code in _UNAVAILABLE or _status(error) >= 500 or _status(error) == 429:
        return _unavailable(f"{operation} failed at {place}: {_said(error, code)}", waited_s)
    return _final(error, code, service, operation, request, place)


def _final(
    error: Exception, code: str, service: str, operation: str, request: Mapping[str, Any], place: str
) -> Exception:
    if code in _NO_STORE or (code in ("404", "NotFound") and "Key" not in request):
        make_it = "" if service in _DEPLOYED else "Make it with `durable init`, or check "
        return StoreNotFound(
            f"{place} isn't there",
            remedy=f"{make_it or 'Check '}the name, the region and the account",
        )
    if code in ("404", "NotFound") or code.startswith("NoSuch") or code.endswith("NotFoundError"):
        return NotThere(place)
    if code in _CREDENTIALS:
        return _no_credentials(f"{place}: AWS doesn't take the credentials ({code})")
    said = _said(error, code)
    if "KMS" in code or "kms:" in said.lower():
        return StoreMisconfigured(
            f"{place}: its KMS key can't be used: {said}",
            remedy="Grant kms:Decrypt and kms:GenerateDataKey on that key, and see that it is enabled",
        )
    if code in _FORBIDDEN:
        return StoreMisconfigured(f"{place}: access denied: {said}", remedy=_grant(service, operation))
    if any(text in said.lower() for text in _TOO_LARGE) or code == "EntityTooLarge":
        return OutputTooLarge(
            f"{place}: too large to be stored: {said}",
            remedy="An item has 400 KB at the most; return less, or return a reference to it",
        )
    remedy = "See with `durable init --dry-run` whether it has the shape that it should have"
    return StoreMisconfigured(
        f"{place} refused {operation}: {said}",
        remedy="Check its name in the function's environment" if service in _DEPLOYED else remedy,
    )


def _explained_here(error: Exception, place: str, waited_s: float) -> DurableError | None:
    """An error without an answer of AWS."""
    lineage = {one.__name__ for one in type(error).__mro__}
    if not _CREDENTIALS_HERE.isdisjoint(lineage):
        return _no_credentials(f"{place}: no usable credentials were found ({type(error).__name__})")
    if lineage & {"NoRegionError", "InvalidRegionError"}:
        return StoreMisconfigured(
            f"{place}: no valid region is named: {error}",
            remedy="Add region= to the store URL, or set AWS_REGION",
        )
    if isinstance(error, OSError) or not _TRANSIENT_HERE.isdisjoint(lineage):
        return _unavailable(f"{place} can't be reached: {str(error) or type(error).__name__}", waited_s)
    if "BotoCoreError" in lineage:
        return StoreMisconfigured(
            f"{place}: the request can't be sent: {error}",
            remedy="Check the names, the region and the endpoint in the store URL",
        )
    return None


def _unavailable(message: str, waited_s: float) -> JournalUnavailable:
    return JournalUnavailable(
        message, remedy="Nothing was lost: resume the run once AWS answers again", waited_s=waited_s
    )


def _no_credentials(message: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        message,
        remedy="Renew them where they come from: the environment, the profile or the role of this process; "
        "if they are new, check this machine's clock",
    )


def _grant(service: str, operation: str) -> str:
    if service == "dynamodb" and operation.startswith("transact_"):
        return "Grant dynamodb:PutItem, UpdateItem, DeleteItem and ConditionCheckItem on the table"
    action = _ACTIONS.get(operation, "".join(word.capitalize() for word in operation.split("_")))
    if action == "GetObject":
        return (
            "Grant s3:GetObject on its objects and s3:ListBucket on the bucket, "
            "without which a missing object answers 403"
        )
    return f"Grant {service}:{action}"


def _place(service: str, request: Mapping[str, Any]) -> str:
    """The table or bucket of a request, with the key of the item or object."""
    if service == "s3":
        key = request.get("Key")
        return f"the bucket {request.get('Bucket')}" + (f" (object {key!r})" if key else "")
    if service != "dynamodb":
        return next((str(request[name]) for name in ("QueueUrl", "EventBusName") if name in request), service)
    one = request
    for parts in request.get("TransactItems", ())[:1]:
        one = next(iter(parts.values()))
    table = one.get("TableName") or ", ".join(request.get("RequestItems", ()))
    keys = one.get("Key") or one.get("Item") or {}
    key = " ".join(keys[name]["S"] for name in ("pk", "sk") if name in keys)
    return f"the table {table}" + (f" (item {key!r:.300})" if key else "")


def _code(error: Exception) -> str | None:
    response = getattr(error, "response", None)
    if not isinstance(response, dict) or "Error" not in response:
        return None
    return str(response["Error"].get("Code") or _status(error))


def _status(error: Exception) -> int:
    answer = getattr(error, "response", {}).get("ResponseMetadata", {})
    return int(answer.get("HTTPStatusCode") or 0)


def _said(error: Exception, code: str) -> str:
    message = getattr(error, "response", {}).get("Error", {}).get("Message") or ""
    return f"{message:.500} ({code})" if message else code


def _cancellation(error: Exception) -> list[dict[str, Any]]:
    found = getattr(error, "response", {}).get("CancellationReasons")
    return list(found or ())


def _reasons(error: Exception) -> list[str | None]:
    codes = [reason.get("Code") for reason in _cancellation(error)]
    return [None if code in (None, "None") else str(code) for code in codes]

"""What the bucket lacks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.provision_change import Change, settings
from durable_core.errors import StoreMisconfigured, StoreNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from durable_core.aws.transport import Transport

_RULE: Final = "durable-core"
_STATEMENT: Final = "DurableCoreTlsOnly"
_UNFINISHED_DAYS: Final = 7
_OLD_VERSIONS_DAYS: Final = 30
_HOME_REGION: Final = "us-east-1"  # the one region that mustn't be named when a bucket is made
_PRIVATE: Final = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}


class BucketChanges:
    """Looks at a bucket.

    Args:
        transport: To AWS.
        name: Of the bucket.
        prefix: Of the objects that are ours.
        region: Where the bucket is made.
        tls_only: Whether it is to refuse requests without TLS.
    """

    def __init__(
        self, transport: Transport, name: str, prefix: str, region: str | None, *, tls_only: bool
    ) -> None:
        self._transport = transport
        self._name = name
        self._prefix = prefix
        self._region = region
        self._tls_only = tls_only

    def changes(self) -> Iterator[Change]:
        """What it lacks, one change after the other; each is to be made before the next is asked for."""
        bucket = self._name
        if not self._has_bucket():
            request: dict[str, Any] = {"Bucket": bucket, "ObjectOwnership": "BucketOwnerEnforced"}
            if self._region not in (None, _HOME_REGION):
                request["CreateBucketConfiguration"] = {"LocationConstraint": self._region}
            yield Change(f"make the bucket {bucket}", "s3", "create_bucket", request, self._has_bucket)
        private = settings(self._transport, "s3", "get_public_access_block", Bucket=bucket)
        if private.get("PublicAccessBlockConfiguration") != _PRIVATE:
            yield self._change(
                "keep {} private", "put_public_access_block", PublicAccessBlockConfiguration=_PRIVATE
            )
        if not settings(self._transport, "s3", "get_bucket_encryption", Bucket=bucket):
            rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
            yield self._change(
                "encrypt {}",
                "put_bucket_encryption",
                ServerSideEncryptionConfiguration={"Rules": [rule]},
            )
        if settings(self._transport, "s3", "get_bucket_versioning", Bucket=bucket).get("Status") != "Enabled":
            yield self._change(
                "keep old versions in {}",
                "put_bucket_versioning",
                VersioningConfiguration={"Status": "Enabled"},
            )
        if self._tls_only:
            yield from self._policy_change()
        yield from self._lifecycle_change()

    def _policy_change(self) -> Iterator[Change]:
        found = settings(self._transport, "s3", "get_bucket_policy", Bucket=self._name).get("Policy")
        policy: dict[str, Any] = json.loads(found) if found else {"Version": "2012-10-17", "Statement": []}
        found_ones: list[dict[str, Any]] | dict[str, Any] = policy["Statement"]
        kept = [found_ones] if isinstance(found_ones, dict) else found_ones  # one may stand alone
        if any(_refuses_plain_http(one) for one in kept):
            return
        partition = "aws-cn" if (self._region or "").startswith("cn-") else "aws"
        partition = "aws-us-gov" if (self._region or "").startswith("us-gov-") else partition
        name = f"arn:{partition}:s3:::{self._name}"
        ours = {
            "Sid": _STATEMENT,
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": [name, f"{name}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
        policy["Statement"] = [*kept, ours]
        yield self._change(
            "refuse requests to {} without TLS", "put_bucket_policy", Policy=json.dumps(policy)
        )

    def _lifecycle_change(self) -> Iterator[Change]:
        """Only what no record points to may be deleted: unfinished uploads, versions that were deleted."""
        rules = settings(self._transport, "s3", "get_bucket_lifecycle_configuration", Bucket=self._name).get(
            "Rules", []
        )
        for rule in rules:
            if rule["Status"] == "Enabled" and _deletes_objects(rule, self._prefix):
                raise StoreMisconfigured(
                    f"the rule {rule.get('ID')!r} of the bucket {self._name} deletes objects by their age: "
                    "outputs of committed steps would be lost",
                    remedy="Limit the rule to another prefix, or name another bucket in the store URL",
                )
        if any(rule.get("ID") == f"{_RULE}:{self._prefix}" for rule in rules):
            return
        ours = {
            "ID": f"{_RULE}:{self._prefix}",
            "Status": "Enabled",
            "Filter": {"Prefix": self._prefix},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": _UNFINISHED_DAYS},
            "NoncurrentVersionExpiration": {"NoncurrentDays": _OLD_VERSIONS_DAYS},
            "Expiration": {"ExpiredObjectDeleteMarker": True},
        }
        yield self._change(
            f"in {{}}, remove unfinished uploads after {_UNFINISHED_DAYS} days and old versions after "
            f"{_OLD_VERSIONS_DAYS}",
            "put_bucket_lifecycle_configuration",
            LifecycleConfiguration={"Rules": [*rules, ours]},
        )

    def _change(self, text: str, operation: str, **request: Any) -> Change:
        return Change(text.format(self._name), "s3", operation, {"Bucket": self._name, **request})

    def _has_bucket(self) -> bool:
        try:
            self._transport.call_now("s3", "head_bucket", {"Bucket": self._name})
        except StoreNotFound:
            return False
        return True


def _refuses_plain_http(statement: Mapping[str, Any]) -> bool:
    asked = statement.get("Condition", {}).get("Bool", {}).get("aws:SecureTransport")
    return statement.get("Effect") == "Deny" and str(asked).lower() == "false"


def _deletes_objects(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule deletes current objects that could be ours."""
    expiration = rule.get("Expiration", {})
    filtered = rule.get("Filter", {})
    theirs = rule.get("Prefix") or filtered.get("Prefix") or filtered.get("And", {}).get("Prefix") or ""
    overlaps = theirs.startswith(prefix) or prefix.startswith(theirs)
    return overlaps and ("Days" in expiration or "Date" in expiration)

"""What a store URL says about DynamoDB and S3; what it can't mean is refused, and nothing secret is shown."""

from __future__ import annotations

import pytest

from durable_core.errors import UsageError
from durable_core.store_urls import DynamoUrl, MemoryUrl, SqliteUrl, parse_store_url, shown
from durable_core.stores import open_store


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("memory://", MemoryUrl()),
        ("sqlite:///a.db", SqliteUrl("a.db")),
        ("sqlite:////x/a%20b.db", SqliteUrl("/x/a b.db")),
        ("dynamodb://runs?bucket=big-outputs", DynamoUrl("runs", "big-outputs")),
        ("dynamodb://Runs_1.x-y/?bucket=b.c", DynamoUrl("Runs_1.x-y", "b.c")),
        (
            "dynamodb://runs?bucket=big&region=eu-central-1&prefix=tenant-a&inline_max_bytes=0",
            DynamoUrl("runs", "big", "eu-central-1", None, "tenant-a/", 0),
        ),
        (
            "dynamodb://runs?endpoint=http://127.0.0.1:4566&bucket=big&prefix=a/b/&inline_max_bytes=262144",
            DynamoUrl("runs", "big", None, "http://127.0.0.1:4566", "a/b/", 262_144),
        ),
        (
            "dynamodb://runs?bucket=big&region=us-gov-west-1&endpoint=https%3A%2F%2Fx.test%2Faws",
            DynamoUrl("runs", "big", "us-gov-west-1", "https://x.test/aws"),
        ),
    ],
)
def test_a_url_is_read_option_by_option(url: str, named: object) -> None:
    assert parse_store_url(url) == named
    if isinstance(named, DynamoUrl):
        assert parse_store_url(named.url) == named


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("dynamodb://runs", "bucket"),
        ("dynamodb://runs?bucket=", "bucket"),
        ("dynamodb://runs?bucket=Big", "bucket"),
        ("dynamodb://runs?bucket=a/b", "bucket"),
        ("dynamodb://?bucket=big", "table"),
        ("dynamodb://ab?bucket=big", "table"),
        ("dynamodb://a%20b?bucket=big", "table"),
        (f"dynamodb://{'a' * 256}?bucket=big", "table"),
        ("dynamodb://runs/more?bucket=big", "table"),
        ("dynamodb://runs:8000?bucket=big", "table"),
        ("dynamodb://[runs?bucket=big", "URL"),
        ("dynamodb://runs?bucket=big&colour=red", "colour"),
        ("dynamodb://runs?bucket=big&Region=eu-central-1", "Region"),
        ("dynamodb://runs?bucket=big&bucket=big", "twice"),
        ("dynamodb://runs?bucket=big&region=", "region"),
        ("dynamodb://runs?bucket=big&region=Frankfurt", "region"),
        ("dynamodb://runs?bucket=big&region=eu-central-1%0A", "region"),
        ("dynamodb://runs?bucket=big&endpoint=localhost:4566", "endpoint"),
        ("dynamodb://runs?bucket=big&endpoint=ftp://x", "endpoint"),
        ("dynamodb://runs?bucket=big&endpoint=http://x:y", "endpoint"),
        ("dynamodb://runs?bucket=big&endpoint=http://[x", "endpoint"),
        ("dynamodb://runs?bucket=big&endpoint=", "endpoint"),
        ("dynamodb://runs?bucket=big&prefix=/a", "prefix"),
        ("dynamodb://runs?bucket=big&prefix=a//b", "prefix"),
        ("dynamodb://runs?bucket=big&prefix=../b", "prefix"),
        ("dynamodb://runs?bucket=big&prefix=a/..", "prefix"),
        ("dynamodb://runs?bucket=big&prefix=a%20b", "prefix"),
        (f"dynamodb://runs?bucket=big&prefix={'a' * 512}", "prefix"),
        ("dynamodb://runs?bucket=big&inline_max_bytes=-1", "inline_max_bytes"),
        ("dynamodb://runs?bucket=big&inline_max_bytes=262145", "inline_max_bytes"),
        ("dynamodb://runs?bucket=big&inline_max_bytes=8k", "inline_max_bytes"),
        ("dynamodb://runs?bucket=big&inline_max_bytes=", "inline_max_bytes"),
        (f"dynamodb://runs?bucket=big&inline_max_bytes={'9' * 5000}", "inline_max_bytes"),
        ("dynamodb://runs?bucket=big#x", "after #"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        open_store(url)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://AKIA:hunter2@runs?bucket=big",
        "dynamodb://hunter2@runs?bucket=big",
        "dynamodb://AKIA:hunter2@runs?bucket=big#x",
        "dynamodb://AKIA:hun/ter2hunter2@runs",
        "dynamodb://runs?bucket=big&aws_secret_access_key=hunter2",
        "dynamodb://runs?bucket=big&endpoint=http://AKIA:hunter2@x",
        "dynamodb://runs?bucket=hunter2:&region=hunter2",
        "postgresql://u:hunter2@h/d#x",
        "sqlite://u:hunter2@h/a.db",
        "mysql://u:hunter2@h/d",
        "u:hunter2@h/d",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


def test_a_store_without_a_bucket_says_what_it_is_for_and_what_to_write() -> None:
    with pytest.raises(UsageError, match="names no bucket, which large outputs") as caught:
        open_store("dynamodb://runs")
    assert "Write dynamodb://runs?bucket=BUCKET" in str(caught.value)


def test_a_url_is_shown_without_user_and_password_and_not_without_end() -> None:
    assert shown("postgresql://u:p@h/d") == "postgresql://h/d"
    assert shown("sqlite:///a.db") == "sqlite:///a.db"
    assert len(shown("sqlite:///" + "a" * 1000)) < 200

"""What the table lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from durable_core.aws.provision_change import Change, settings
from durable_core.aws.table import EXPIRES_AT, differences, table_request
from durable_core.errors import JournalUnavailable, StoreMisconfigured, StoreNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from durable_core.aws.transport import Transport

_LOOKS: Final = 60
_LOOK_EVERY_S: Final = 1.0


class TableChanges:
    """Looks at a table.

    Args:
        transport: To AWS.
        name: Of the table.
        sleep: Waits a number of seconds.
    """

    def __init__(self, transport: Transport, name: str, sleep: Callable[[float], None]) -> None:
        self._transport = transport
        self._name = name
        self._sleep = sleep

    def changes(self) -> Iterator[Change]:
        """What it lacks, one change after the other; each is to be made before the next is asked for."""
        named = {"TableName": self._name}
        described = self._described()
        if described is None:
            yield Change(
                f"make the table {self._name}, on demand, encrypted, with its two indexes",
                "dynamodb",
                "create_table",
                table_request(self._name),
                lambda: self._described() is not None,
            )
            described = self._described()
        if described is not None:
            self._check_shape(described)
            self._await_active(described)
        if not self._has_expiry():
            yield Change(
                f"let items of {self._name} expire at {EXPIRES_AT}",
                "dynamodb",
                "update_time_to_live",
                {**named, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": EXPIRES_AT}},
                self._has_expiry,
            )
        if not self._has_backups():
            yield Change(
                f"back up {self._name} to any point in time",
                "dynamodb",
                "update_continuous_backups",
                {**named, "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}},
                self._has_backups,
            )

    def _described(self) -> dict[str, Any] | None:
        try:
            found = self._transport.call_now("dynamodb", "describe_table", {"TableName": self._name})
        except StoreNotFound:
            return None
        return dict(found["Table"])

    def _check_shape(self, described: Mapping[str, Any]) -> None:
        wrong = differences(described)
        if wrong:
            raise StoreMisconfigured(
                f"the table {self._name} has another shape: {'; '.join(wrong)}",
                remedy="Name another table in the store URL; this one was left as it is",
            )

    def _await_active(self, described: Mapping[str, Any]) -> None:
        for _ in range(_LOOKS):
            indexes = described.get("GlobalSecondaryIndexes", ())
            if {described["TableStatus"], *(one.get("IndexStatus") for one in indexes)} == {"ACTIVE"}:
                return
            self._sleep(_LOOK_EVERY_S)
            described = self._described() or described
        raise JournalUnavailable(
            f"the table {self._name} is {described['TableStatus']} for a long time",
            remedy="Run `durable init` again later",
        )

    def _has_expiry(self) -> bool:
        found = settings(self._transport, "dynamodb", "describe_time_to_live", TableName=self._name)
        told = found.get("TimeToLiveDescription", {})
        if told.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            return False
        if told.get("AttributeName") != EXPIRES_AT:
            raise StoreMisconfigured(
                f"items of table {self._name} expire at {told.get('AttributeName')!r}, not at {EXPIRES_AT}",
                remedy="Switch that off, or name another table in the store URL",
            )
        return True

    def _has_backups(self) -> bool:
        found = settings(self._transport, "dynamodb", "describe_continuous_backups", TableName=self._name)
        told = found.get("ContinuousBackupsDescription", {}).get("PointInTimeRecoveryDescription", {})
        return bool(told.get("PointInTimeRecoveryStatus") == "ENABLED")

"""The price table: the only place that has prices. Check AWS's own list before you rely on it."""

from __future__ import annotations

from typing import Final

REGION: Final = "us-east-1"
AS_OF: Final = "2025-06"

# From the public price lists for on-demand tables and S3 Standard; dollars for a million.
PRICES: Final = {
    "write_units": 0.625,
    "read_units": 0.125,
    "s3_puts": 5.0,
    "s3_gets": 0.4,
}
# Dollars for a GB (10^9 bytes) and month; a table has 25 GB for nothing, which aren't taken off here.
STORAGE: Final = {"table_bytes": 0.25, "s3_bytes": 0.023}

"""Scan folders for personal and financial data, durably: kill it anywhere, resume it, read the same report.

    durable run functions.workflows.compliance_scan:compliance_scan --input '{"folders": ["contracts"]}'

It lists the documents, maps a scan over them, assesses (risk score and retention), asks a language model
about the worst (only if a model id is given), merges and writes. What the steps do is in `scanning`; here is
only what makes it durable. Copy the shape for a job of your own: small typed outputs, a map over the
documents, and a document's troubles as its outcome instead of the batch's end.
"""

from __future__ import annotations

from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from durable_core import Context, MapResult, Retry, current_step, step, workflow
from durable_core.errors import StepFailed
from functions.workflows.scanning import llm, report, risk, scan
from functions.workflows.scanning.listing import list_everything
from functions.workflows.scanning.masking import KEY_VARIABLE, configured_key, key_id
from functions.workflows.scanning.models import (
    Assessment,
    DocumentRef,
    DocumentScan,
    Level,
    Listing,
    Opinion,
    Report,
    ReportFiles,
    ScanSummary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES: Final = 32 * 1024 * 1024
_WORTH_ASKING: Final = frozenset({Level.MEDIUM, Level.HIGH, Level.CRITICAL})


class FingerprintKeyChanged(Exception):
    """The run is resumed with another fingerprint key: its findings could not be compared with each other."""


@step
def list_documents(folders: list[str], documents: list[str], exclude: list[str]) -> Listing:
    """Find what there is to scan, once: a resumed run has the same list, whatever has come to it since."""
    return list_everything(folders, documents, exclude=exclude, key_id=key_id(configured_key()))


# A network drive may be back in a second. What is wrong with a document for good is an outcome, not an error.
@step(retry=Retry(max_attempts=3, initial_delay_s=0.5, factor=4, max_delay_s=10))
def scan_document(ref: DocumentRef, max_bytes: int, scan_log: str | None = None) -> DocumentScan:
    """Scan one document."""
    if scan_log:
        scan.note_scan(scan_log, ref.name)
    return scan.scan_one(ref, max_bytes=max_bytes, key=configured_key())


@step
def assess_documents(
    listing: Listing, batch: MapResult[DocumentScan], as_of: date, retention_years: int
) -> list[Assessment]:
    """Score every document and check it against the retention time."""
    scans = _scans(listing, batch)
    return [risk.assess(found, as_of=as_of, retention_years=retention_years) for found in scans]


@step
def check_model(model_id: str) -> str:
    """Make sure, before hours of scanning, that the model can be asked at all."""
    llm.open_client()
    return model_id


@step(
    retry=Retry(
        max_attempts=3, initial_delay_s=1, factor=4, max_delay_s=30, give_up_on=(llm.LlmNotConfigured,)
    ),
    timeout_s=180,
)
def ask_model(ref: DocumentRef, model_id: str, max_bytes: int) -> Opinion:
    """Have the model judge one document, of which it sees a blotted-out excerpt."""
    return llm.ask(ref, model_id, max_bytes=max_bytes, idempotency_key=current_step().idempotency_key)


@step
def merge_report(
    listing: Listing,
    batch: MapResult[DocumentScan],
    assessments: list[Assessment],
    opinions: list[Opinion],
    as_of: date,
    retention_years: int,
) -> Report:
    """Put everything together."""
    scans = _scans(listing, batch)
    return report.merge(listing, scans, assessments, opinions, as_of=as_of, retention_years=retention_years)


# A full disk or a drive that is away may mend; a path that can't be a folder or written to won't.
@step(
    retry=Retry(
        max_attempts=3,
        initial_delay_s=0.5,
        factor=4,
        max_delay_s=10,
        give_up_on=(NotADirectoryError, FileExistsError, PermissionError),
    )
)
def write_report(merged: Report, report_dir: str) -> ReportFiles:
    """Write the report; run again after a crash it writes the same bytes to the same place."""
    return report.write(merged, Path(report_dir))


@workflow
async def compliance_scan(
    ctx: Context,
    folders: list[str] | None = None,
    documents: list[str] | None = None,
    report_dir: str = "report",
    retention_years: int = 7,
    as_of: date | None = None,
    model_id: str | None = None,
    llm_documents: int = 20,
    exclude: list[str] | None = None,
    max_bytes: int = MAX_BYTES,
    max_concurrency: int = 4,
    scan_log: str | None = None,
    distribute: bool = False,
    chunk_size: int | None = None,
) -> ScanSummary:
    """Scan documents for personal and financial data and write a report.

    Args:
        ctx: Of the run.
        folders: Scanned to the bottom: text, Markdown, CSV, JSON, e-mail and similar files.
        documents: Single files, whatever their names.
        report_dir: Gets `compliance.json` and `compliance.csv`; never scanned itself.
        retention_years: Records older than this are findings.
        as_of: The day to judge age from; by default the day on which the run was created.
        model_id: A Bedrock model that says what it thinks of the worst documents; None asks nobody.
        llm_documents: Most documents the model is asked about.
        exclude: Files and folders to leave out.
        max_bytes: Larger documents are reported as unreadable.
        max_concurrency: Documents in work at a time.
        scan_log: A file that gets one line at each start of a scan, to count them by.
        distribute: Whether several workers share the documents; all must see the folders.
        chunk_size: How many documents a worker takes at a time, if they are shared.

    Raises:
        ValueError: An input is missing or out of range.
        FingerprintKeyChanged: `SCAN_FINGERPRINT_KEY` isn't the one that the run began with.
    """
    _check(folders, documents, retention_years, max_concurrency)
    today = as_of or ctx.now().date()
    if model_id:
        await ctx.step(check_model, model_id)
    left_out = [*(exclude or []), report_dir, *([scan_log] if scan_log else [])]
    listing = await ctx.step(list_documents, folders or [], documents or [], left_out)
    if key_id(configured_key()) != listing.key_id:
        raise FingerprintKeyChanged(f"resume the run with the {KEY_VARIABLE} that it was started with")
    scan_each = partial(scan_document, max_bytes=max_bytes, scan_log=scan_log)
    # A document that fails every attempt, or kills its process each time, takes no other with it.
    batch = await ctx.map(
        scan_each,
        listing.documents,
        max_concurrency=max_concurrency,
        tolerate_failures=1.0,
        distribute=distribute,
        chunk_size=chunk_size,
    )
    assessments = await ctx.step(assess_documents, listing, batch, today, retention_years)
    worst = _worst(listing.documents, assessments)[:llm_documents]
    opinions = await _ask_about(ctx, worst, model_id, max_bytes) if model_id else []
    merged = await ctx.step(merge_report, listing, batch, assessments, opinions, today, retention_years)
    files = await ctx.step(write_report, merged, report_dir)
    return _summary(merged, files)


def _scans(listing: Listing, batch: MapResult[DocumentScan]) -> list[DocumentScan]:
    """What came of each document, in the order of the listing; for steps, since it reads the store."""
    return [
        item.output if item.error is None else scan.unreadable(ref, f"scan failed: {item.error['type']}")
        for ref, item in zip(listing.documents, batch.iter(), strict=True)
    ]


async def _ask_about(
    ctx: Context, refs: Sequence[DocumentRef], model_id: str, max_bytes: int
) -> list[Opinion]:
    """One at a time: a model's rate limit is reached soon enough."""
    opinions = []
    for ref in refs:
        try:
            opinions.append(await ctx.step(ask_model, ref, model_id, max_bytes))
        except StepFailed as failure:
            reason = failure.error.get("type", failure.code)
            opinions.append(Opinion(name=ref.name, status="failed", reason=reason))
    return opinions


def _summary(merged: Report, files: ReportFiles) -> ScanSummary:
    return ScanSummary(
        documents=len(merged.documents),
        scanned=merged.scanned,
        unreadable=merged.unreadable,
        findings=merged.findings,
        levels=merged.levels,
        report=files,
    )


def _worst(refs: Sequence[DocumentRef], assessments: Sequence[Assessment]) -> list[DocumentRef]:
    worth = [pair for pair in zip(refs, assessments, strict=True) if pair[1].level in _WORTH_ASKING]
    worth.sort(key=lambda pair: (-pair[1].score, pair[0].name))
    return [ref for ref, _ in worth]


def _check(
    folders: list[str] | None, documents: list[str] | None, retention_years: int, max_concurrency: int
) -> None:
    if not folders and not documents:
        raise ValueError("nothing to scan: give folders, documents or both")
    if not 0 <= retention_years <= 200:
        raise ValueError(f"retention_years={retention_years} is not within 0 and 200")
    if max_concurrency < 1:
        raise ValueError(f"max_concurrency={max_concurrency} must be at least 1")

"""Show an Examination: the timings, the findings, and the number of failed checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from convtime.health.examination import AS_IS, Examination, Finding, KnownDuration, OperationTiming
from convtime.view.page import Block, Line, Table
from convtime.view.wording import format_seconds


def line(seen: Examination) -> str:
    failed = sum(finding.status == "failed" for finding in seen.findings)
    return f"{_device(seen)}: {len(seen.findings)} checks, {failed} failed"


def _device(seen: Examination) -> str:
    return str(seen.provenance.get("gpu") or seen.provenance.get("cpu"))


def printed(seen: Examination) -> Iterator[Block]:
    findings = seen.findings
    failed = sum(finding.status == "failed" for finding in findings)
    advised = sum(finding.status == "advice" for finding in findings)
    yield Line(f"{_device(seen)}; torch {seen.provenance.get('torch')}")
    yield _durations_table(seen.known_durations)
    yield _operations_table(seen.operations)
    yield Line(f"ceilings: {seen.ceilings}")
    yield findings_table(findings)
    yield Line(
        f"{len(findings)} checks in {seen.seconds:.1f} s: {failed} failed, {advised} with advice",
        role="answer",
    )


details = printed


def _durations_table(durations: Sequence[KnownDuration]) -> Table:
    rows = [
        (
            known.method,
            format_seconds(known.expected),
            "—" if known.measured is None else format_seconds(known.measured),
            "—" if known.error is None else f"{known.error * 1e9:+,.0f} ns",
            "—" if known.spread is None else f"{known.spread:.2%}",
        )
        for known in durations
    ]
    headers = ("method", "difference of two spins", "as timed", "error", "IQR of the longer")
    return Table(headers, rows, right=headers[1:])


def _operations_table(operations: Sequence[OperationTiming]) -> Table:
    def column(timing: OperationTiming) -> str:
        return timing.method if timing.regime == AS_IS else timing.regime

    titles = list(dict.fromkeys(map(column, operations)))
    cells: dict[str, dict[str, str]] = {}
    for timing in operations:
        cell = "—"
        if timing.median is not None and timing.spread is not None:
            cell = f"{format_seconds(timing.median)} ± {timing.spread:.1%}"
        cells.setdefault(timing.name, {})[column(timing)] = cell
    rows = [(name, *(row.get(title, "") for title in titles)) for name, row in cells.items()]
    return Table(("median ± IQR", *titles), rows, right=titles)


def findings_table(findings: Iterable[Finding]) -> Table:
    """Return a table with a row per finding, with its advice."""
    rows = []
    for finding in findings:
        advice = f": {finding.advice}" if finding.advice else ""
        rows.append((finding.status, f"{finding.check}: {finding.message}{advice}"))
    return Table((), rows)

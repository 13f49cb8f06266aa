"""Render the results of `convtime doctor` as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convtime.core import codec
from convtime.core.proof import Proof, summary
from convtime.core.text import columns, table
from convtime.core.units import format_seconds
from convtime.health.examination import AS_IS, Examination, Finding, KnownDuration, OperationTiming
from convtime.health.findings import find, passed

SCHEMA = "2.1"


def document(seen: Examination) -> dict[str, Any]:
    """Return a JSON-serializable dict with schema version, findings, and whether all passed."""
    findings = [codec.encode(finding) for finding in find(seen)]
    return codec.encode(seen, SCHEMA) | {"passed": passed(seen), "findings": findings}


def text(seen: Examination) -> str:
    """Return plain text: the timings, the findings, and the number of failed checks."""
    device = seen.provenance["gpu"] or seen.provenance["cpu"]
    found = find(seen)
    failed = sum(finding.status == "failed" for finding in found)
    advised = sum(finding.status == "advice" for finding in found)
    return "\n\n".join(
        [
            f"{device}; torch {seen.provenance['torch']}",
            _durations_table(seen.known_durations),
            _operations_table(seen.operations),
            f"ceilings: {seen.ceilings}",
            columns([*map(_row, found)]),
            f"{len(found)} checks in {seen.seconds:.1f} s: {failed} failed, {advised} with advice",
        ]
    )


def proof_text(proof: Proof) -> str:
    """Return a line per promise, and the number of promises that hold."""
    said = {True: "holds", False: "BROKEN", None: "not checked"}
    rows = [
        (said[promise.holds], f"{promise.name}: {promise.sentence}") for promise in proof.promises
    ]
    versions = ", ".join(f"{what} {version}" for what, version in proof.versions.items())
    return "\n\n".join([f"{proof.gpu}; {versions}", columns(rows), summary(proof)])


def _durations_table(durations: Sequence[KnownDuration]) -> str:
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
    return table(headers, rows, right=headers[1:])


def _operations_table(operations: Sequence[OperationTiming]) -> str:
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
    return table(("median ± IQR", *titles), rows, right=titles)


def _row(finding: Finding) -> tuple[str, str]:
    advice = f": {finding.advice}" if finding.advice else ""
    return finding.status, f"{finding.check}: {finding.message}{advice}"

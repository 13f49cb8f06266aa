"""Show a Survey: the GPUs, the findings, and the number of failed checks."""

from __future__ import annotations

from collections.abc import Iterator

from convtime.health.show import findings_table
from convtime.health.survey import Survey, SurveyedGpu
from convtime.view.page import Block, Line, Table
from convtime.view.wording import counted

_COLUMNS = ("", "GPU", "state", "PCIe", "NVLink")


def line(seen: Survey) -> str:
    failed = sum(finding.status == "failed" for finding in seen.findings)
    return (
        f"{counted(len(seen.gpus), 'GPU')}: {counted(len(seen.findings), 'check')}, {failed} failed"
    )


def printed(seen: Survey) -> Iterator[Block]:
    yield Table(_COLUMNS, map(_row, seen.gpus))
    yield findings_table(seen.findings)
    yield Line(line(seen), role="answer")


details = printed


def _row(gpu: SurveyedGpu) -> tuple[str, ...]:
    def number(value: int | None) -> str:
        return "?" if value is None else str(value)

    state = str(gpu.state).partition(": ")[2]
    pcie = (
        f"generation {number(gpu.pcie_generation)} of {number(gpu.max_pcie_generation)}, "
        f"{number(gpu.pcie_width)} of {number(gpu.max_pcie_width)} lanes"
    )
    links = f"{sum(gpu.nvlinks)} of {len(gpu.nvlinks)} active" if gpu.nvlinks else "none"
    return gpu.device, gpu.name, state, pcie, links

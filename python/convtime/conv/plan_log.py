"""Read PyTorch's cuDNN plans from the log of its copy of the cuDNN frontend."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convtime.conv.plan_choice import Plan, TensorDescriptor

_PLAN = re.compile(
    r"CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR : (?P<tag>\S+), "
    r"numeric_notes:\[(?P<numerical>[^\]]*)\] behavior_notes:\[(?P<behavior>[^\]]*)\] "
    r"workSpaceSize: (?P<workspace>\d+)"
)
_TIMED = re.compile(r"Plan (?P<tag>\S+) took +(?P<milliseconds>\S+)")
_TENSOR = re.compile(
    r"CUDNN_BACKEND_TENSOR_DESCRIPTOR :\s+Datatype: (?P<type>\S+)\s+Id: (?P<id>\d+)\s.*?"
    r"Dim \[ (?P<sizes>[\d,]+) \]\s+Str \[ (?P<strides>[\d,-]+) \].*?Alignment: (?P<alignment>\d+)",
    re.DOTALL,
)
_CONVOLUTION = re.compile(
    r"CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR : Datatype: (?P<type>\S+) Mode: \S+ "
    r"Num Dimensions: \d+ PadLower \[(?P<padding>[^\]]*)\] PadUpper \[[^\]]*\] "
    r"Dilation \[(?P<dilation>[^\]]*)\] Stride \[(?P<stride>[^\]]*)\]"
)


# cuDNN's dtype names, in lower case, and torch's.
_DTYPES = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}


@dataclasses.dataclass(frozen=True)
class PlanLog:
    """The log of PyTorch's cuDNN frontend for one call.

    Attributes:
        plan: The plan that PyTorch keeps; None if the log does not identify it.
        unknown: Why the plan is unknown; empty if it is known.
        timed: Tags of the plans that PyTorch timed, in that order.
    """

    plan: Plan | None = None
    unknown: str = ""
    timed: tuple[str, ...] = ()


def chosen_tags(text: str) -> tuple[str, ...]:
    """Return the tag of the plan that PyTorch keeps for each operation of one pass of a layer.

    See :func:`parse_log`, which is for a single operation.
    """
    built = [match["tag"] for match in _PLAN.finditer(text)]
    timed = {match["tag"]: float(match["milliseconds"]) for match in _TIMED.finditer(text)}
    # Of each operation, the last one: the fastest that was timed, or else the last one built.
    tags = [*built, *sorted(timed, key=lambda tag: -timed[tag])]
    return tuple({tag.partition("_eng")[0]: tag for tag in tags}.values())


def parse_log(text: str) -> PlanLog:
    """Parse the part of the frontend's log that a single call of one convolution pass wrote.

    With cudnn.benchmark off, PyTorch builds one plan after another until one runs. The last one
    built is the one it keeps; the others were rejected. With benchmark on, it first builds all
    plans, times them, and keeps the fastest. The log then has these times with six digits, and the
    plans that failed.
    """
    built = {match["tag"]: match for match in _PLAN.finditer(text)}
    timed = [(match["tag"], float(match["milliseconds"])) for match in _TIMED.finditer(text)]
    if not built:
        return PlanLog(unknown="PyTorch's log has no plan for this call")
    if not timed:
        tag = [match["tag"] for match in _PLAN.finditer(text)][-1]
        refused = [other for other in built if other != tag]
        return PlanLog(_plan(built[tag], "heuristic", refused, text))
    tags = tuple(tag for tag, _ in timed)
    least = min(milliseconds for _, milliseconds in timed)
    fastest = [tag for tag, milliseconds in timed if milliseconds == least]
    if len(fastest) > 1:
        return PlanLog(
            unknown=f"PyTorch timed {len(fastest)} plans, and its log gives the same time "
            f"({least} ms) for {' and '.join(fastest)}",
            timed=tags,
        )
    failed = re.findall(r"Plan (\S+) failed with ", text)
    return PlanLog(_plan(built[fastest[0]], "benchmark", failed, text), timed=tags)


def log_of(call: Callable[[], object], log: Path) -> PlanLog:
    """Return the log entries that this process's PyTorch adds during a call; errors propagate."""
    before = log.stat().st_size if log.exists() else 0
    call()
    if not log.exists():
        return PlanLog(unknown="PyTorch's copy of the cuDNN frontend wrote no log")
    with log.open("rb") as file:
        file.seek(before)
        return parse_log(file.read().decode(errors="replace"))


def _plan(match: re.Match[str], source: str, refused: list[str], text: str) -> Plan:
    return Plan(
        tag=match["tag"],
        source=source,
        workspace_bytes=int(match["workspace"]),
        numerical_notes=_names(match["numerical"], "CUDNN_NUMERICAL_NOTE_"),
        behavior_notes=_names(match["behavior"], "CUDNN_BEHAVIOR_NOTE_"),
        refused=tuple(refused),
        **_descriptors(text),
    )


def _names(listed: str, beginning: str) -> tuple[str, ...]:
    return tuple(name.strip().removeprefix(beginning) for name in listed.split(",") if name.strip())


def _descriptors(text: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for match in _TENSOR.finditer(text):
        # PyTorch numbers the graph's tensors by the letters' codes.
        name = chr(int(match["id"]))
        if name in ("x", "w", "y"):
            facts[name] = TensorDescriptor(
                sizes=_numbers(match["sizes"]),
                strides=_numbers(match["strides"]),
                alignment=int(match["alignment"]),
                dtype=_dtype(match["type"]),
            )
    for match in _CONVOLUTION.finditer(text):
        facts["compute_type"] = _dtype(match["type"])
        for name in ("padding", "stride", "dilation"):
            facts[name] = _numbers(match[name])
    return facts


def _numbers(listed: str) -> tuple[int, ...]:
    return tuple(int(number) for number in listed.split(",") if number.strip())


def _dtype(written: str) -> str:
    name = written.strip('"[]').lower()
    return _DTYPES.get(name, name)

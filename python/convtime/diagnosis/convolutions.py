"""Find faster alternatives for the convolutions that an operation runs."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import torch

from convtime.conv.advice import Advice, measured_advice
from convtime.conv.call import FPROP
from convtime.conv.explain.binding import prepare
from convtime.conv.sources.called import convolutions_of
from convtime.core.errors import one_line
from convtime.diagnosis.evidence import Evidence
from convtime.diagnosis.subject import Subject

_MOST = 3  # convolutions with different problems
_SECONDS = 0.5  # for each


def advise(subject: Subject, evidence: Evidence, until: float) -> tuple[tuple[Advice, ...], str]:
    """Try other layouts, dtypes and sizes for the convolutions of a call.

    Args:
        subject: the diagnosed operation.
        evidence: its evidence.
        until: end of the budget, on the clock of ``time.perf_counter``.

    Returns:
        The advice that was tried, and why some or all was skipped. The reason is empty if
        everything was tried or there are no convolutions.
    """
    try:
        subject.prepare()
        calls = convolutions_of(subject.call)
        found = {call.problem.label: (tensors, call) for tensors, call in map(prepare, calls)}
    except Exception as error:  # no exception here may discard the diagnosis
        return (), one_line(error)
    if not found:
        return (), ""
    if len(found) > _MOST:
        return (), f"it runs {len(found)} different convolutions; use convtime.explain on each one"
    advice: list[Advice] = []
    for label, (tensors, call) in found.items():
        if time.perf_counter() + _SECONDS + 20 * evidence.calls.waiting.median > until:
            return tuple(advice), "the budget leaves no time to try other layouts and dtypes"
        with torch.no_grad(), contextlib.suppress(RuntimeError):  # may not fit in memory
            tried = measured_advice(call, FPROP, tensors, _SECONDS)
            advice += [
                each if len(found) == 1 else dataclasses.replace(each, text=f"{label}: {each.text}")
                for each in tried
            ]
    return tuple(advice), ""

"""Show a Diagnosis: causes with evidence and advice, then the account of a call's time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from convtime.view.page import Block, Cell, Details, Facts, Line, Sentences, Table
from convtime.view.wording import format_estimate, format_seconds, format_signed, printable

if TYPE_CHECKING:
    from convtime.diagnosis.diagnosis import Diagnosis, Difference
    from convtime.diagnosis.evidence import Timing

_NOTHING = "no cause was found that dominates its time or makes it vary, except the work itself"
_TIMES = ("varied", "condition", "time [95 %]", "spread", "SM clock")


def line(diagnosis: Diagnosis) -> str:
    """Return one line with the name, the time, and the causes by weight."""
    causes = ", ".join(cause.code for cause in diagnosis.causes) or "nothing"
    seconds = format_seconds(diagnosis.account.seconds)
    return printable(f"{diagnosis.name}: {seconds} in a loop; {causes}")


def printed(diagnosis: Diagnosis) -> Iterator[Block]:
    """Yield causes, a call's account, convolution alternatives, and another tool's number."""
    yield Line(line(diagnosis), role="answer")
    yield Sentences(_findings(diagnosis), indent=2, role="answer")
    for number, cause in enumerate(diagnosis.causes, start=1):
        body = [*cause.evidence, *(f"→ {each}" for each in cause.advice)]
        yield Sentences(body, title=f"{number}. {cause}", indent=3, role="answer")
    yield Facts(_account(diagnosis), title="where a call's time goes")
    if diagnosis.advice:
        yield Sentences(map(str, diagnosis.advice), title="other ways to convolve")
    if diagnosis.difference is not None:
        yield Table((), _parts(diagnosis.difference), title=diagnosis.difference.title)
    if diagnosis.skipped:
        skipped = ", ".join(each.contrast for each in diagnosis.skipped)
        yield Sentences([f"not looked at: {skipped}"], role="caution")


def details(diagnosis: Diagnosis) -> Iterator[Block]:
    """Yield :func:`printed`, all times, and the reasons for skipped contrasts."""
    yield from printed(diagnosis)
    full: list[Block] = [Table(_TIMES, _times(diagnosis), right=_TIMES[2:])]
    if diagnosis.skipped:
        reasons: dict[str, Cell] = {
            f"{each.contrast} ({each.varies})" if each.varies else each.contrast: each.reason
            for each in diagnosis.skipped
        }
        full.append(Facts(reasons, title="not looked at"))
    full.append(Line(f"took {diagnosis.seconds:.1f} s on {diagnosis.device}"))
    yield Details(full)


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield findings other than causes."""
    if diagnosis.unused_gpu:
        yield f"the call issues no work on {diagnosis.unused_gpu}: all of its time is CPU time"
    host = diagnosis.evidence.host
    if host is not None and host.missing:
        yield f"not seen: {host.missing}"
    if not diagnosis.causes:
        yield _NOTHING


def _account(diagnosis: Diagnosis) -> dict[str, Cell]:
    account, on_gpu = diagnosis.account, diagnosis.evidence.on_gpu
    parts = {
        "waits": account.waiting,
        "waits for a core": account.queued,
        "stopped by a quota": account.throttled,
        "maps memory": account.faulting,
        "in Python": account.interpreting,
        "dispatching": account.dispatching,
    }
    least = 0.01 * account.seconds
    if on_gpu:
        parts = {
            "GPU busy": account.busy,
            "GPU idle": account.idle,
            "copies alone": account.copies,
            "host issues": account.issuing,
            "host waits": account.waiting,
            "host allocates": account.allocating,
        }
        least = 0.0
    shown: dict[str, Cell] = {"a call": format_seconds(account.seconds)}
    for name, seconds in parts.items():
        if seconds > least or name.startswith("GPU"):
            share = seconds / account.seconds if account.seconds > 0 else 0.0
            shown[name] = f"{format_seconds(seconds)}, {share:.0%}"
    if on_gpu:
        shown["launches"] = f"{account.launches:.4g}"
    return shown


def _parts(difference: Difference) -> list[tuple[str, str]]:
    rows = [
        (format_signed(part.seconds), f"{part.name}: {part.sentence}") for part in difference.parts
    ]
    return [*rows, (format_signed(difference.unexplained), "unexplained")]


def _times(diagnosis: Diagnosis) -> list[tuple[str, str, str, str, str]]:
    evidence = diagnosis.evidence
    own = {"a loop": {"as-is": evidence.calls.loop, "waiting each time": evidence.calls.waiting}}
    return [
        (
            contrast,
            condition,
            _estimate(timing),
            f"{timing.spread:.2%}",
            "" if timing.clock_hz is None else f"{timing.clock_hz / 1e6:.0f} MHz",
        )
        for contrast, conditions in {**own, **evidence.contrasts}.items()
        for condition, timing in conditions.items()
    ]


def _estimate(timing: Timing) -> str:
    if timing.low is None or timing.high is None:
        return format_seconds(timing.median)
    return format_estimate(timing.median, timing.low, timing.high)

"""Render a Diagnosis: causes with evidence and advice, then the account of a call's time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from convtime.core import html, text
from convtime.core.units import format_estimate, format_seconds, format_signed

if TYPE_CHECKING:
    from convtime.diagnosis.diagnosis import Cause, Diagnosis, Difference
    from convtime.diagnosis.evidence import Timing

_NOTHING = "no cause was found that dominates its time or makes it vary, except the work itself"
_PARTS = ("", "part")
_TIMES = ("varied", "condition", "time [95 %]", "spread", "SM clock")


def line(diagnosis: Diagnosis) -> str:
    """Return one line with the name, the time, and the causes by weight."""
    found = ", ".join(cause.code for cause in diagnosis.causes) or "nothing"
    seconds = format_seconds(diagnosis.account.seconds)
    return text.printable(f"{diagnosis.name}: {seconds} in a loop; {found}")


def brief(diagnosis: Diagnosis) -> str:
    """Return causes, a call's account, convolution alternatives, and another tool's number."""
    blocks = [line(diagnosis)]
    if found := [*_findings(diagnosis)]:
        blocks.append(text.sentences(found, indent=2))
    blocks += [
        f"{number}. {text.printable(str(cause))}\n{text.sentences(_body(cause), indent=3)}"
        for number, cause in enumerate(diagnosis.causes, start=1)
    ]
    blocks.append(f"where a call's time goes\n{text.facts(_account(diagnosis), indent=2)}")
    if diagnosis.advice:
        tried = text.sentences(map(str, diagnosis.advice), indent=2)
        blocks.append(f"other ways to convolve\n{tried}")
    if diagnosis.difference is not None:
        rows = _parts(diagnosis.difference)
        title = text.printable(diagnosis.difference.title)
        blocks.append(f"{title}\n{text.columns(rows, indent=2)}")
    if diagnosis.skipped:
        blocks.append(text.sentences(["not looked at: " + ", ".join(_skipped(diagnosis))]))
    return "\n\n".join(blocks)


def sheet(diagnosis: Diagnosis) -> str:
    """Return :func:`brief`, all times, and the reasons for skipped contrasts."""
    blocks = [brief(diagnosis)]
    rows = _times(diagnosis)
    if rows:
        blocks.append(text.table(_TIMES, rows, right=_TIMES[2:]))
    if diagnosis.skipped:
        blocks.append(f"not looked at\n{text.facts(_reasons(diagnosis), indent=2)}")
    blocks.append(f"took {diagnosis.seconds:.1f} s on {text.printable(diagnosis.device)}")
    return "\n\n".join(blocks)


def html_sheet(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as HTML, with all text escaped."""
    shown = [html.paragraph(line(diagnosis))]
    shown += map(html.paragraph, _findings(diagnosis))
    for number, cause in enumerate(diagnosis.causes, start=1):
        shown += [html.paragraph(f"{number}. {cause}"), html.items(_body(cause))]
    shown.append(html.facts("where a call's time goes", _account(diagnosis)))
    if diagnosis.advice:
        shown += [html.paragraph("other ways to convolve"), html.items(map(str, diagnosis.advice))]
    if diagnosis.difference is not None:
        difference = diagnosis.difference
        shown.append(html.table(_PARTS, _parts(difference), difference.title))
    left = _reasons(diagnosis)
    full = html.table(_TIMES, _times(diagnosis))
    full += html.facts("not looked at", left) if left else ""
    shown.append(html.hidden("all times", full))
    return "".join(shown)


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield findings other than causes."""
    if diagnosis.unused_gpu:
        yield f"the call issues no work on {diagnosis.unused_gpu}: all of its time is CPU time"
    host = diagnosis.evidence.host
    if host is not None and host.missing:
        yield f"not seen: {host.missing}"
    if not diagnosis.causes:
        yield _NOTHING


def _body(cause: Cause) -> list[str]:
    return [*cause.evidence, *(f"→ {each}" for each in cause.advice)]


def _account(diagnosis: Diagnosis) -> dict[str, text.Cell]:
    account = diagnosis.account
    shown: dict[str, text.Cell] = {"a call": format_seconds(account.seconds)}
    if not diagnosis.evidence.on_gpu:
        for name, seconds in (
            ("waits", account.waiting),
            ("waits for a core", account.queued),
            ("stopped by a quota", account.throttled),
            ("maps memory", account.faulting),
            ("in Python", account.interpreting),
            ("dispatching", account.dispatching),
        ):
            if seconds > 0.01 * account.seconds:
                shown[name] = _share(seconds, account.seconds)
        return shown
    shown["GPU busy"] = _share(account.busy, account.seconds)
    shown["GPU idle"] = _share(account.idle, account.seconds)
    for name, seconds in (
        ("copies alone", account.copies),
        ("host issues", account.issuing),
        ("host waits", account.waiting),
        ("host allocates", account.allocating),
    ):
        if seconds > 0:
            shown[name] = _share(seconds, account.seconds)
    shown["launches"] = f"{account.launches:.4g}"
    return shown


def _share(seconds: float, whole: float) -> str:
    share = seconds / whole if whole > 0 else 0.0
    return f"{format_seconds(seconds)}, {share:.0%}"


def _parts(difference: Difference) -> list[tuple[str, str]]:
    rows = [
        (format_signed(part.seconds), f"{part.name}: {part.sentence}") for part in difference.parts
    ]
    return [*rows, (format_signed(difference.unexplained), "unexplained")]


def _reasons(diagnosis: Diagnosis) -> dict[str, text.Cell]:
    """Return the reasons for skipped contrasts, by contrast and varied factor."""
    return {
        f"{each.contrast} ({each.varies})" if each.varies else each.contrast: each.reason
        for each in diagnosis.skipped
    }


def _skipped(diagnosis: Diagnosis) -> Iterator[str]:
    return (each.contrast for each in diagnosis.skipped)


def _times(diagnosis: Diagnosis) -> list[tuple[str, str, str, str, str]]:
    evidence = diagnosis.evidence
    own = {"a loop": {"as-is": evidence.calls.loop, "waiting each time": evidence.calls.waiting}}
    return [
        (contrast, condition, _estimate(timing), f"{timing.spread:.2%}", _clock(timing))
        for contrast, conditions in {**own, **evidence.contrasts}.items()
        for condition, timing in conditions.items()
    ]


def _estimate(timing: Timing) -> str:
    if timing.low is None or timing.high is None:
        return format_seconds(timing.median)
    return format_estimate(timing.median, timing.low, timing.high)


def _clock(timing: Timing) -> str:
    return "" if timing.clock_hz is None else f"{timing.clock_hz / 1e6:.0f} MHz"

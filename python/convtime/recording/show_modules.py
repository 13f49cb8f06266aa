"""Show ModuleTimes: one line, a table, and all facts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from convtime.counting.results import Counters, KernelCounters
from convtime.recording.module_times import ModuleTimes, PassTimes
from convtime.timing.plot import Spread, times_and_ratios
from convtime.timing.show import estimate
from convtime.timing.show import line as line_of
from convtime.view.figure import Figure, labels
from convtime.view.page import Block, Details, Sentences, Table
from convtime.view.wording import counted, format_estimate, format_seconds, printable

_IN_PLACE, _ALONE, _RATIO = "in place [95 %]", "isolated [95 %]", "in place / isolated"
_RIGHT = ("calls", "share", _RATIO)
_KERNELS = {True: "same", False: "OTHERS", None: ""}


def line(times: ModuleTimes) -> str:
    modules = {timed.module for timed in times.passes}
    step = format_seconds(statistics.median(times.step_seconds))
    return printable(
        f"of {times.model}: {len(modules)} modules in a step of {step}, {times.method}"
    )


def printed(times: ModuleTimes) -> Iterator[Block]:
    yield Table(_headers(times), _rows(times), right=_RIGHT)
    yield Sentences(_remarks(times), role="answer")
    yield Sentences(_cautions(times), tight=True, role="caution")


def details(times: ModuleTimes) -> Iterator[Block]:
    yield from printed(times)
    full: list[Block] = [Sentences(_kernels(timed), title=_title(timed)) for timed in times.passes]
    if times.counters is not None:
        full.append(_counters_table(times, times.counters))
    yield Details(full)


def _kernels(timed: PassTimes) -> Iterator[str]:
    for each in timed.activities:
        yield f"in place: {each}"
    if timed.isolated is not None:
        yield f"isolated: {line_of(timed.isolated)}"
        for each in timed.isolated.activities:
            yield f"isolated: {each}"


def _title(timed: PassTimes) -> str:
    return f"{timed.module or 'the model'} {timed.direction}"


def _is_isolated(times: ModuleTimes) -> bool:
    return any(timed.isolated is not None or timed.isolated_reason for timed in times.passes)


def _headers(times: ModuleTimes) -> list[str]:
    headers = ["module", "", "pass", "calls", _IN_PLACE, "share"]
    if _is_isolated(times):
        headers += [_ALONE, _RATIO, "verdict"]
        headers += ["kernels"] * (times.method == "kernel")
    return headers


def _rows(times: ModuleTimes) -> Iterator[list[str]]:
    step = statistics.median(times.step_seconds)
    for timed in times.passes:
        row = [
            timed.module or "the model",
            timed.kind,
            timed.direction,
            str(timed.calls),
            format_estimate(timed.median, *timed.median_interval),
            f"{timed.median / step:.1%}" if step > 0 else "",
        ]
        if _is_isolated(times):
            alone = "–" if timed.isolated is None else estimate(timed.isolated)
            ratio = "" if timed.ratio is None else _ratio_cell(timed)
            row += [alone, ratio, _verdict(times, timed)]
            row += [_KERNELS[timed.same_kernels]] * (times.method == "kernel")
        yield row


def _ratio_cell(timed: PassTimes) -> str:
    assert timed.ratio is not None
    low, high = timed.ratio.low, timed.ratio.high
    if not math.isfinite(high):
        return f"{timed.ratio.value:.3f}"
    return f"{timed.ratio.value:.3f} [{low:.3f}, {high:.3f}]"


def _verdict(times: ModuleTimes, timed: PassTimes) -> str:
    verdict = times.verdict(timed)
    return f"{verdict} in place" if verdict in ("faster", "slower") else verdict


def _remarks(times: ModuleTimes) -> Iterator[str]:
    what = "kernels, copies and memsets" if times.method == "kernel" else "host time"
    text = f"{what} of a step: {format_seconds(statistics.median(times.step_seconds))}, including "
    yield text + f"{format_seconds(statistics.median(times.rest_seconds))} outside modules"
    if math.isfinite(times.disturbance):
        yield f"with watched modules, a step takes {times.disturbance:.3f} times as long"
    if _is_isolated(times):
        how = f"in regime {times.regime}"
        if times.regime == "step":
            how = "each after a whole step"
        yield f"isolated: the same calls repeated, {how}"
    clocks = [
        reading.sm_clock_hz for reading in times.conditions if reading.sm_clock_hz is not None
    ]
    if clocks:
        low, high = (end(clocks) / 1e6 for end in (min, max))
        yield f"SM clock while steps were recorded: {low:.0f} .. {high:.0f} MHz"


def _cautions(times: ModuleTimes) -> Iterator[str]:
    """Yield what was requested but not done, and limits of the times."""
    if times.method_reason:
        yield f"these are CPU times: {times.method_reason}"
    if times.method == "kernel" and times.exclusive_reason:
        yield f"maybe disturbed: {times.exclusive_reason}"
    for timed in times.passes:
        if timed.isolated_reason:
            yield f"{_title(timed)} was not timed in isolation: {timed.isolated_reason}"
        if timed.counters_reason:
            yield f"no counters of {_title(timed)} in isolation: {timed.counters_reason}"
    if times.not_called:
        yield f"not called by the step: {', '.join(times.not_called)}"
    if times.counters_reason:
        yield f"no counters: {times.counters_reason}"


def _counters_table(times: ModuleTimes, of_step: Counters) -> Table:
    """Return a table with a row per counted kernel, with each metric's value per launch."""
    metrics = list(of_step.units)
    headers = ["kernel", "counted", "launches"]
    headers += [f"{metric} ({of_step.units[metric]})" for metric in metrics]
    alone: dict[str, list[tuple[str, KernelCounters]]] = {}
    for timed in times.passes:
        for kernel in timed.counters.kernels if timed.counters is not None else ():
            alone.setdefault(kernel.name, []).append((_title(timed), kernel))
    rows = []
    for kernel in of_step.kernels:
        for where, each in [("in place", kernel), *alone.get(kernel.name, ())]:
            values = [each.values.get(metric) for metric in metrics]
            cells = ["–" if value is None else f"{value:.6g}" for value in values]
            rows.append([each.short_name, where, str(each.launches), *cells])
    return Table(headers, rows, right=headers[2:])


def figures(times: ModuleTimes) -> Iterator[Figure]:
    yield plot(times)


def plot(times: ModuleTimes) -> Figure:
    """Draw each module pass's time within a step and in isolation, and the ratio."""
    passes = times.passes
    in_place = [Spread(each.median, *each.median_interval) for each in passes]
    isolated = [
        None
        if each.isolated is None
        else Spread(each.isolated.median, *each.isolated.median_interval)
        for each in passes
    ]
    return Figure(
        title=f"{times.model}: {times.method} times of modules in a step",
        description=(
            f"Times of {counted(len(passes), 'pass', 'passes')} of the modules of {times.model} "
            "within a step and in isolation, with 95 % intervals, and the ratios of the two."
        ),
        view=times_and_ratios(
            labels(map(_title, passes)),
            {"in place": in_place, "isolated": isolated},
            [each.ratio for each in passes],
            times.margin,
            "in place / isolated",
        ),
        key=f"dot: median; bar: its 95 % interval; band: ± {times.margin:.2%}",
    )

"""Render results of `convtime conv` as a table, JSON, CSV and a figure."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from convtime.conv.problem import ConvLayer
from convtime.core import codec
from convtime.layers.compare import LayerResult, StepResult
from convtime.timing.forms import csv_of
from convtime.timing.measurement import Measurement
from convtime.timing.plot import Spread, times_and_ratios
from convtime.view import text
from convtime.view.figure import Figure, labels
from convtime.view.wording import counted, format_seconds, printable

BAND = 0.03  # of ratios, in the figure
FEW_SAMPLES = 10  # with fewer, a median's interval spans almost the whole range


_HEADERS = (
    "layer",
    "N×C×size → K, kernel",
    "PyTorch ± IQR",
    "convtime ± IQR",
    "ratio [95 %]",
    "kernels",
    "bits",
    "GFLOP/s",
)
# Widths of the columns after the second one, which a row needs before later rows are known.
_WIDTHS = (17, 17, 20, 7, 5, 7)


def titles_and_labels(
    layers: Iterable[ConvLayer], passes: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the first two cells of each row, which are known before the layers are timed."""
    for layer in layers:
        count = f" (×{layer.count})" if layer.count > 1 else ""
        for pass_name in passes:
            yield layer.title(pass_name) + count, layer.problem.label


def table_lines(results: Iterable[LayerResult], known: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the head of the table, and each result's row as soon as the result is there.

    Args:
        results: The results, of which the next is awaited after a row.
        known: The first two cells of all rows.
    """
    widths = [max(map(cell_len, map(printable, cells))) for cells in zip(*known, strict=True)]
    widths += _WIDTHS

    def lines(row: Sequence[str]) -> list[str]:
        padded = [
            " " * (width - cell_len(printable(cell))) + cell
            if header in right
            else cell + " " * (width - cell_len(printable(cell)))
            for header, cell, width in zip(_HEADERS, row, widths, strict=True)
        ]
        return text.table(_HEADERS, [padded], right=right).splitlines()

    right = (*_HEADERS[2:5], _HEADERS[-1])
    yield "\n".join(lines([""] * len(_HEADERS))[:2])
    for result in results:
        yield "\n".join(
            lines(
                (
                    *next(titles_and_labels([result.layer], [result.pass_name])),
                    _median_and_spread(result.pytorch),
                    _median_and_spread(result.convtime),
                    f"{result.ratio.value:.3f} [{result.ratio.low:.3f}, {result.ratio.high:.3f}]",
                    _kernel_count(result),
                    "same" if result.bit_identical else "OTHER",
                    f"{result.gflops:,.{1 if result.gflops < 100 else 0}f}",
                )
            )[2:]
        )


def remark_on_few_samples(results: Sequence[LayerResult]) -> str:
    """Return a line that says how many layers had few samples; empty if none had."""
    hasty = sum(len(result.convtime.seconds) < FEW_SAMPLES for result in results)
    if not hasty:
        return ""
    return (
        f"{hasty} of the layers had time for fewer than {FEW_SAMPLES} samples: increase "
        "--budget for narrower intervals"
    )


def methods_line(results: Sequence[LayerResult]) -> str:
    methods = sorted(
        {
            f"{result.convtime.method} (queue: {result.convtime.queue}, "
            f"cache: {result.convtime.cache})"
            for result in results
        }
    )
    return f"timed by {', '.join(methods)}"


def summary(results: Sequence[LayerResult]) -> str:
    """Return one line: number of layers, number of bit-identical results, overall time ratio."""
    ratios = [result.ratio.value for result in results]
    geomean = statistics.geometric_mean(ratios)
    identical = sum(result.bit_identical for result in results)
    layers = len({result.layer.problem for result in results})
    passes = f" in {len(results)} passes" if len(results) > layers else ""
    return (
        f"{layers} distinct layers{passes}, {identical} bit-identical; time convtime/PyTorch: "
        f"geometric mean {geomean:.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    )


def _kernel_count(result: LayerResult) -> str:
    if result.same_kernels is None:
        return "–"
    theirs, ours = len(result.pytorch.activities), len(result.convtime.activities)
    return f"{ours}, same" if result.same_kernels else f"{ours}, PyTorch {theirs}: OTHERS"


def kernels(results: Sequence[LayerResult]) -> str:
    """Return the kernels of PyTorch and convtime for each result, with their median times."""
    lines = []
    for result in results:
        title = printable(result.title)
        theirs, ours = result.pytorch.activities, result.convtime.activities
        if result.same_kernels:
            lines.append(f"{title}, the same in PyTorch and in convtime:")
            # Groups run on several streams at once, so the order of kernels varies.
            sides = (sorted(side, key=lambda kernel: kernel.launch) for side in (theirs, ours))
            lines += [
                f"  {their_kernel}, {format_seconds(our_kernel.median)}"
                for their_kernel, our_kernel in zip(*sides, strict=True)
            ]
        elif result.same_kernels is not None:
            for who, side in (("PyTorch", theirs), ("convtime", ours)):
                lines.append(f"{title}, {who} alone:")
                lines += [f"  {kernel}" for kernel in side]
    return "\n".join(lines)


def reproducers(results: Sequence[LayerResult]) -> str:
    """Return a line with the reproducing command for each slower or different result."""
    lines = []
    for result in results:
        findings = [
            "slower" if result.verdict == "slower" else "",
            "different" if result.is_different else "",
            result.contradiction,
        ]
        if any(findings):
            reasons = ", ".join(filter(None, findings))
            lines.append(f"{printable(result.title)} ({reasons}): {result.reproducer}")
    return "\n".join(lines)


def empty_line(names: Sequence[str]) -> str:
    """Return one line on layer calls that were not timed because their input is empty."""
    calls = [
        printable(name) + (f" (×{count})" if count > 1 else "")
        for name, count in collections.Counter(names).items()
    ]
    return f"not timed (called on an empty input): {', '.join(calls)}" if calls else ""


def step_line(step: StepResult) -> str:
    shape = "×".join(map(str, step.input_shape))
    return (
        f"a training step of {printable(step.model)} on {shape}: PyTorch "
        f"{_median_and_spread(step.pytorch)}, after convtime.nn.replace "
        f"{_median_and_spread(step.convtime)}, ratio {step.ratio}"
    )


def _median_and_spread(measurement: Measurement) -> str:
    return f"{format_seconds(measurement.median)} ± {measurement.iqr / measurement.median:.1%}"


def to_json(
    results: Sequence[LayerResult],
    provenance: Mapping[str, Any],
    step: StepResult | None = None,
    empty: Sequence[str] = (),
) -> str:
    """Return the results as strict JSON; times in seconds, with every sample.

    Args:
        results: results, one per row.
        provenance: provenance of the run.
        step: result of a model's training step; None if not timed.
        empty: names of layers called on an empty input, once per call.
    """
    rows = [result.to_dict() for result in results]
    document = codec.document("Convolutions", {"rows": rows, "provenance": provenance})
    if step is not None:
        document["step"] = step.to_dict()
    if empty:
        document["empty"] = list(empty)
    return codec.to_json(document)


def to_csv(results: Sequence[LayerResult]) -> str:
    """Return the results as CSV, one line per layer; column names include the unit."""
    rows = []
    for result in results:
        problem = result.layer.problem
        row: dict[str, Any] = {
            "layer": result.layer.name,
            "count": result.layer.count,
            "n": problem.batch,
            "c": problem.in_channels,
            **dict.fromkeys("dhw"[: 3 - problem.rank], ""),
            **dict(zip("dhw"[3 - problem.rank :], problem.size, strict=True)),
            "k": problem.out_channels,
            "kernel_size": problem.kernel_size,
            "stride": problem.stride,
            "padding": problem.padding,
            "dilation": problem.dilation,
            "groups": problem.groups,
            "bias": problem.bias,
            "padding_mode": problem.padding_mode,
            "transposed": problem.transposed,
            "output_padding": problem.output_padding,
            "pass": result.pass_name,
            "dtype": result.dtype,
            "layout": result.layout,
            "backend": result.backend,
        }
        for who, measurement in (("pytorch", result.pytorch), ("convtime", result.convtime)):
            row |= {
                f"{who}_median_s": measurement.median,
                f"{who}_iqr_s": measurement.iqr,
                f"{who}_samples": len(measurement.seconds),
                f"{who}_method": measurement.method,
            }
        row |= {
            "ratio": result.ratio.value,
            "ratio_low": result.ratio.low,
            "ratio_high": result.ratio.high,
            "verdict": result.verdict,
            "bit_identical": result.bit_identical,
            "pytorch_repeats": result.pytorch_repeats,
            "same_kernels": result.same_kernels,
            "gflops": result.gflops,
        }
        rows.append(
            {
                key: "x".join(map(str, value)) if isinstance(value, tuple) else value
                for key, value in row.items()
            }
        )
    return csv_of(rows, [*rows[0]])


def layers_figure(results: Sequence[LayerResult], title: str) -> Figure:
    """Draw both medians of each layer with their quartiles, and the ratio with its interval.

    Args:
        results: results of at least one layer.
        title: description of the measurement conditions.
    """
    different = sum(not result.bit_identical for result in results)
    return Figure(
        title=title,
        description=(
            f"Times of {counted(len(results), 'layer')} in PyTorch and in convtime, and their "
            f"ratios; {different} of the results are not bit-identical."
        ),
        view=times_and_ratios(
            labels(
                result.title if result.bit_identical else f"{result.title}, NOT BIT-IDENTICAL"
                for result in results
            ),
            {
                "PyTorch": [_spread(result.pytorch) for result in results],
                "convtime": [_spread(result.convtime) for result in results],
            },
            [result.ratio for result in results],
            BAND,
            "convtime / PyTorch",
        ),
        key=f"dot: median; bars: quartiles; ratios with 95 % interval; band: ± {BAND:.0%}",
    )


def _spread(measured: Measurement) -> Spread:
    # The median accounts for the clock's tick, but quantiles do not: it may be outside them.
    return Spread(
        measured.median,
        min(measured.median, measured.quantile(0.25)),
        max(measured.median, measured.quantile(0.75)),
    )

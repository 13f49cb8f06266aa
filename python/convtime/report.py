"""What `convtime compare` measured as a table, JSON and CSV; files are written whole or not."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from convtime.conv_compare import LayerResult, StepResult
from convtime.explain import kernels_of
from convtime.layers import InputError
from convtime.measurement import Measurement, format_seconds

SCHEMA = 2
FEW_SAMPLES = 10  # with fewer, the interval of a median is not much less than the whole range


def printable(text: str) -> str:
    """A text with escapes for what would steer a terminal or break a line."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def table(results: Sequence[LayerResult]) -> str:
    """Results as text, a line a layer, and a last line that sums them up."""
    rows = [
        (
            printable(result.title)
            + (f" (×{result.layer.count})" if result.layer.count > 1 else ""),
            result.layer.label,
            _median_and_spread(result.pytorch),
            _median_and_spread(result.convtime),
            f"{result.ratio.value:.3f} [{result.ratio.low:.3f}, {result.ratio.high:.3f}]",
            _kernel_count(result),
            "yes" if result.bit_identical else "NO",
            f"{result.gflops:,.1f}",
        )
        for result in results
    ]
    headers = (
        "layer",
        "N×C×size → K, kernel",
        "PyTorch median ± IQR",
        "convtime median ± IQR",
        "convtime/PyTorch [low, high]",
        "kernels",
        "bit-identical",
        "GFLOP/s",
    )
    sides = ("left", "left", "right", "right", "right", "left", "left", "right")
    text = tabulate(rows, headers, tablefmt="simple", colalign=sides, disable_numparse=True)
    hasty = sum(len(result.convtime.seconds) < FEW_SAMPLES for result in results)
    if hasty:
        text += (
            f"\n\n{hasty} of the layers had time for fewer than {FEW_SAMPLES} samples: a larger "
            "--budget makes them surer"
        )
    return f"{text}\n\n{summary(results)}"


def summary(results: Sequence[LayerResult]) -> str:
    """One line: how many layers, how many results bit-identical, and the time ratio over all."""
    ratios = [result.ratio.value for result in results]
    geomean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    identical = sum(result.bit_identical for result in results)
    layers = len({result.layer for result in results})
    passes = f" in {len(results)} passes" if len(results) > layers else ""
    return (
        f"{layers} distinct layers{passes}, {identical} bit-identical; time convtime/PyTorch: "
        f"geometric mean {geomean:.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    )


def _kernel_count(result: LayerResult) -> str:
    if result.same_kernels is None:
        return "–"
    theirs, ours = len(kernels_of(result.pytorch)), len(kernels_of(result.convtime))
    return f"{ours}, same" if result.same_kernels else f"{ours}, PyTorch {theirs}: OTHERS"


def kernels(results: Sequence[LayerResult]) -> str:
    """What was launched for each result, by PyTorch and by convtime, with medians of the times."""
    lines = []
    for result in results:
        title = printable(result.title)
        theirs, ours = kernels_of(result.pytorch), kernels_of(result.convtime)
        if result.same_kernels:
            lines.append(f"{title}, the same in PyTorch and in convtime:")
            # Groups run on several streams at once, and which kernel is first varies.
            sides = (sorted(side, key=lambda one: one.launch) for side in (theirs, ours))
            lines += [
                f"  {one}, {format_seconds(other.seconds)}"
                for one, other in zip(*sides, strict=True)
            ]
        elif result.same_kernels is not None:
            for who, side in (("PyTorch", theirs), ("convtime", ours)):
                lines.append(f"{title}, {who} alone:")
                lines += [f"  {one}" for one in side]
    return "\n".join(lines)


def step_line(step: StepResult) -> str:
    """One line on a model's own training step."""
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
) -> str:
    """Results as strict JSON; times in seconds, every sample included."""
    document = {
        "schema": SCHEMA,
        "rows": [result.to_dict() for result in results],
        "provenance": provenance,
    }
    return dump_json(document if step is None else document | {"step": step.to_dict()})


def dump_json(document: Mapping[str, Any]) -> str:
    """Strict JSON with a line for each item of a list, so that a diff shows which rows changed.

    Numbers that JSON has no form for (NaN, infinities) become null.
    """

    def line(value: object) -> str:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)

    entries = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            value = ",\n".join(f"  {line(item)}" for item in value)
            entries.append(f" {line(key)}: [\n{value}\n ]")
        else:
            entries.append(f" {line(key)}: {line(value)}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def to_csv(results: Sequence[LayerResult]) -> str:
    """Results as CSV, a line a layer; names of columns carry the unit."""
    rows = []
    for result in results:
        layer = result.layer
        row: dict[str, Any] = {
            "layer": layer.name,
            "count": layer.count,
            "n": layer.batch,
            "c": layer.in_channels,
            **dict.fromkeys("dhw"[: 3 - layer.rank], ""),
            **dict(zip("dhw"[3 - layer.rank :], layer.size, strict=True)),
            "k": layer.out_channels,
            "kernel_size": layer.kernel_size,
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
            "groups": layer.groups,
            "bias": layer.bias,
            "padding_mode": layer.padding_mode,
            "transposed": layer.transposed,
            "output_padding": layer.output_padding,
            "pass": result.pass_name,
            "dtype": result.dtype,
            "layout": result.layout,
            "backend": result.backend,
        }
        for who, measurement in (("pytorch", result.pytorch), ("convtime", result.convtime)):
            row[f"{who}_median_s"] = measurement.median
            row[f"{who}_iqr_s"] = measurement.iqr
            row[f"{who}_samples"] = len(measurement.seconds)
            row[f"{who}_method"] = measurement.method
        row |= {
            "ratio": result.ratio.value,
            "ratio_low": result.ratio.low,
            "ratio_high": result.ratio.high,
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
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Makes sure, before hours of timing, that write_file(path) can work afterwards.

    Raises:
        InputError: Says why it cannot.
    """
    try:
        target = _target(path)
        # What is still a link after it was followed leads in a circle.
        if target.is_symlink() or (target.exists() and not target.is_file()):
            raise InputError(f"{path}: cannot be written, since it is not a regular file")
        temporary = _temporary(target)
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except OSError as error:
        folder = Path(path).absolute().parent
        raise InputError(f"{path}: cannot be written in {folder} ({error.strerror})") from error


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file whole or not at all: at every moment it holds the old content or the new.

    Raises:
        InputError: Says why it cannot, e.g. a full disk; the old content is still there.
    """
    target = _target(path)
    temporary = _temporary(target)
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # or a crash could leave the new name with no content
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def _target(path: str | os.PathLike[str]) -> Path:
    """The file behind a path that may be a link, which os.replace would replace itself."""
    return Path(os.path.realpath(path))


def _temporary(target: Path) -> Path:
    # In the same directory, since a rename is atomic only within a file system.
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")

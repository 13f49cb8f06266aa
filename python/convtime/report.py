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

from convtime.conv_compare import LayerResult
from convtime.layers import InputError
from convtime.measurement import Measurement, format_seconds

SCHEMA = 1
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
            printable(result.layer.name)
            + (f" (×{result.layer.count})" if result.layer.count > 1 else ""),
            result.layer.label,
            _median_and_spread(result.pytorch),
            _median_and_spread(result.convtime),
            f"{result.ratio.value:.3f} [{result.ratio.low:.3f}, {result.ratio.high:.3f}]",
            "yes" if result.bit_identical else "NO",
            f"{result.gflops:,.1f}",
        )
        for result in results
    ]
    headers = (
        "layer",
        "N×C×H×W → K, R×S",
        "PyTorch median ± IQR",
        "convtime median ± IQR",
        "convtime/PyTorch [low, high]",
        "bit-identical",
        "GFLOP/s",
    )
    right = ("left", "left", "right", "right", "right", "left", "right")
    text = tabulate(rows, headers, tablefmt="simple", colalign=right, disable_numparse=True)
    hasty = sum(len(result.convtime.seconds) < FEW_SAMPLES for result in results)
    if hasty:
        text += (
            f"\n\n{hasty} of the layers had time for fewer than {FEW_SAMPLES} samples: a larger "
            "--budget makes them surer"
        )
    return f"{text}\n\n{summary(results)}"


def summary(results: Sequence[LayerResult]) -> str:
    """One line: how many layers, how many bit-identical, and the time ratio over all of them."""
    ratios = [result.ratio.value for result in results]
    geomean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    identical = sum(result.bit_identical for result in results)
    return (
        f"{len(results)} distinct layers, {identical} bit-identical; time convtime/PyTorch: "
        f"geometric mean {geomean:.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    )


def _median_and_spread(measurement: Measurement) -> str:
    return f"{format_seconds(measurement.median)} ± {measurement.iqr / measurement.median:.1%}"


def to_json(results: Sequence[LayerResult], provenance: Mapping[str, Any]) -> str:
    """Results as strict JSON; times in seconds, every sample included."""
    return dump_json(
        {
            "schema": SCHEMA,
            "rows": [result.to_dict() for result in results],
            "provenance": provenance,
        }
    )


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
        row = {
            "layer": layer.name,
            "count": layer.count,
            "n": layer.batch,
            "c": layer.in_channels,
            "h": layer.height,
            "w": layer.width,
            "k": layer.out_channels,
            "kernel_size": layer.kernel_size,
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
            "groups": layer.groups,
            "bias": layer.bias,
            "padding_mode": layer.padding_mode,
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

"""Read and write measurements in any supported format.

Readers and types of results are imported when a file needs them.
"""

from __future__ import annotations

import codecs
import dataclasses
import importlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convtime.core import codec, strict_json
from convtime.core.checks import require
from convtime.core.errors import InputError, one_line, shown, why
from convtime.core.files import extension_of, is_run_file, write_file
from convtime.exchange.other_tools import measurements_by_name
from convtime.timing.measurement import Measurement, Measurements
from convtime.view.wording import listed

if TYPE_CHECKING:
    import pandas
    from torch.utils import benchmark

    from convtime.regression.baseline import Baseline
    from convtime.regression.noise import Repeats
    from convtime.sweeps.comparison_table import ComparisonTable
    from convtime.sweeps.sweep_table import Sweep
    from convtime.timing.comparison import Comparison


_READABLE = (
    "a Measurement, a Comparison, a ComparisonTable, a Sweep or a saved run of convtime, JSON of "
    "pytest-benchmark or nvbench, or CSV with the columns name and seconds"
)
#: Modules of the types of results that hold measurements, by the types' names.
MEASURED = {
    "Baseline": "convtime.regression.baseline",
    "Comparison": "convtime.timing.comparison",
    "ComparisonTable": "convtime.sweeps.comparison_table",
    "Measurement": "convtime.timing.measurement",
    "Measurements": "convtime.timing.measurement",
    "Sweep": "convtime.sweeps.sweep_table",
}
_FOR_EACH_SAMPLE = (
    *("raw_seconds", "busy_seconds", "span_seconds", "sum_seconds"),
    *("sm_clocks_hz", "places", "batches"),
)


def read_measurements(
    source: str
    | os.PathLike[str]
    | pandas.DataFrame
    | benchmark.Measurement
    | benchmark.Compare
    | Iterable[benchmark.Measurement],
) -> Measurements:
    """Read measurements of convtime or of another tool.

    Conditions that the other tool does not report (method, cache, clocks, …) are ``unknown`` in the
    result, and the field's reason names the tool. ``provenance["tool"]`` also names it.

    Args:
        source: a file, a data frame, or measurements of ``torch.utils.benchmark``. The format of a
            file is detected: convtime's JSON (a Measurement, a Comparison, a
            ComparisonTable, a Sweep, ``convtime conv --json``, a saved run), the file of a sweep or
            of a comparison over axes, JSON of pytest-benchmark (with
            its samples: ``--benchmark-json`` or ``--benchmark-save-data``) or of nvbench (with its
            samples: ``--jsonbin``), or CSV with the columns of :meth:`Measurement.to_frame`. A data
            frame has the same columns. The columns ``name`` and ``seconds`` are required. From
            ``torch.utils.benchmark``, pass a Measurement, several, or a Compare.

    Returns:
        The measurements by name, in the order of the source.

    Raises:
        InputError: the source cannot be read; the message says in one sentence why.
    """
    if isinstance(source, str | os.PathLike):
        result = read_file(source)
        kind = type(result).__name__
        require(
            kind in MEASURED,
            f"{os.fspath(source)}: must be {_READABLE}, got a {kind}; convtime show shows it",
        )
        return Measurements(measurements_of(result))
    pandas_loaded = sys.modules.get("pandas")
    if pandas_loaded is not None and isinstance(source, pandas_loaded.DataFrame):
        from convtime.exchange import frame

        return frame.read_frame(source)
    from convtime.exchange import torch_benchmark

    return torch_benchmark.read(source)


def read_baseline(path: str | os.PathLike[str]) -> Baseline:
    """Read a saved run, with its noise if there is any; any other file as a single run.

    Raises:
        InputError: the file cannot be read; the message says in one sentence why.
    """
    return baseline_of(read_file(path))


def read_file(path: str | os.PathLike[str], modules: Mapping[str, str] = MEASURED) -> codec.Stored:
    """Read a file like :func:`read_measurements`, but keep results whole.

    Args:
        path: the file.
        modules: the modules of the types of results that are read, by the types' names.

    Raises:
        InputError: the file cannot be read; the message says in one sentence why.
    """
    path = Path(path)
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        raise InputError(f"{path}: cannot be read ({why(error)})") from error
    try:
        if path.suffix.lower() == ".csv":
            from convtime.exchange import frame

            return frame.read_csv(content.decode(), str(path))
        if is_run_file(content):
            from convtime.sweeps import journal

            run = journal.read(io.BytesIO(content), str(path))
            try:
                result: codec.Stored = run.result
            except InputError as error:  # its visits do not fit each other
                raise InputError(f"{path}: {error}") from error
        else:
            document = strict_json.parse(content.decode(), str(path))
            result = _read_document(document, path, modules)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: must be {_READABLE}, got a file that is not UTF-8") from error
    except ValueError as error:
        raise InputError(f"{path}: {one_line(error)}") from error
    for measured in _measurements_in(result):
        _check_lengths(measured, path)
    return result


def measurements_of(result: codec.Stored) -> Mapping[str, Measurement]:
    """Return the measurements in a result by name; none if it has others."""
    if isinstance(result, Measurement):
        return {result.name: result}
    if type(result).__name__ not in MEASURED:
        return {}
    return dict(getattr(result, "measurements"))  # noqa: B009


def baseline_of(result: codec.Stored) -> Baseline:
    """Return a saved run as it is, with its noise, and any other result as a single run."""
    from convtime.regression.baseline import Baseline

    return result if isinstance(result, Baseline) else Baseline(measurements_of(result))


def with_names_in_common(
    before: Baseline, after: Baseline, first: str, second: str
) -> tuple[Baseline, Baseline]:
    """Return two runs to compare; two runs of one measurement each have one name for both.

    Args:
        before: the earlier run.
        after: the later run.
        first: name of the earlier run, for the message.
        second: name of the later run.

    Raises:
        InputError: the runs have no name in common.
    """
    were, now = before.measurements, after.measurements
    if len(were) == len(now) == 1 and were.keys() != now.keys():
        (old,), (new,) = were.values(), now.values()
        name = f"{old.name} → {new.name}"
        return _renamed(name, before), _renamed(name, after)
    require(
        were.keys() & now.keys(),
        f"{first} and {second} have no name in common: the first has "
        f"{listed(map(shown, were)) or 'none'}, the second {listed(map(shown, now)) or 'none'}",
    )
    return before, after


def _renamed(name: str, single: Baseline) -> Baseline:
    ((old, measured),) = single.measurements.items()

    def renamed(repeats: Mapping[str, Repeats]) -> dict[str, Repeats]:
        return {name: repeats[old]} if old in repeats else {}

    return dataclasses.replace(
        single,
        measurements=Measurements({name: measured}).measurements,
        repeats=renamed(single.repeats),
        relative=renamed(single.relative),
    )


def _measurements_in(value: object) -> Iterator[Measurement]:
    """Yield the measurements in a result, in whichever of its parts."""
    if isinstance(value, Measurement):
        yield value
    elif isinstance(value, Mapping):
        yield from _measurements_in(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            if not isinstance(part, int | float | str):
                yield from _measurements_in(part)
    elif dataclasses.is_dataclass(value):
        # Those with slots are the many rows of a result, which hold numbers and names.
        for part in getattr(value, "__dict__", {}).values():
            yield from _measurements_in(part)


def _check_lengths(measured: Measurement, path: Path) -> None:
    """Check that fields with one value per sample have a value for every sample."""
    of = f"{path}: {shown(measured.name)} has {len(measured.seconds)} samples and"
    for field in _FOR_EACH_SAMPLE:
        count = len(getattr(measured, field))
        require(
            count in (0, len(measured.seconds)),
            f"{of} {count} {field}; their numbers must be equal",
        )
    for activity in measured.activities:
        count = len(activity.seconds)
        require(
            count == len(measured.seconds) and set(activity.seconds) != {None},
            f"{of} {count} times of {shown(activity.label)}; their numbers must be equal, and "
            "some times must be known",
        )


def _read_document(document: Any, path: Path, modules: Mapping[str, str]) -> codec.Stored:
    if isinstance(document, Mapping):
        from convtime.exchange import nvbench, pytest_benchmark

        if pytest_benchmark.matches(document):
            return measurements_by_name(pytest_benchmark.read(document, str(path)), str(path))
        if nvbench.matches(document):
            return measurements_by_name(nvbench.read(document, path), str(path))
        kind = document.get("type")
        if kind == "Convolutions":
            codec.check_document(kind, document)
            return measurements_by_name(_read_layers(document), str(path))
        if isinstance(kind, str) and kind in modules:
            type_of_result: type[codec.Stored] = getattr(
                importlib.import_module(modules[kind]), kind
            )
            return type_of_result.from_dict(document)
        if isinstance(kind, str):
            raise InputError(f"{path}: must be {_READABLE}, got JSON of type {shown(kind)}")
    content = (
        f"a JSON object with the keys {', '.join(map(shown, list(document)[:5]))}"
        if isinstance(document, Mapping) and document
        else f"JSON that begins with {json.dumps(document)[:20]!r}"
    )
    raise InputError(f"{path}: must be {_READABLE}, got {content}")


def _read_layers(document: Mapping[str, Any]) -> list[Measurement]:
    """Read the output of `convtime conv --json`: two measurements per row, without provenance.

    The row's reproducer is added to their provenance.
    """
    measurements = []
    machine = document.get("provenance", {})
    if not isinstance(machine, Mapping):
        raise ValueError(f"its provenance must be an object, got {shown(json.dumps(machine))}")
    for row in document.get("rows", ()):
        try:
            layer, pass_name = row["layer"]["names"][0], row["pass_name"]
            sides = {side: dict(row[side]) for side in ("pytorch", "convtime")}
        except (TypeError, KeyError, IndexError, ValueError) as error:
            raise ValueError("its rows are not those of convtime's convolutions") from error
        provenance = dict(machine)
        if "reproducer" in row:
            provenance["reproducer"] = row["reproducer"]
        for side, fields in sides.items():
            measured = codec.decode(Measurement, {**fields, "provenance": provenance})
            name = f"{layer} {pass_name}: {side}"
            measurements.append(dataclasses.replace(measured, name=name))
    return measurements


def write_measurements(
    measurements: Measurement
    | Measurements
    | Comparison
    | ComparisonTable
    | Sweep
    | Mapping[str, Measurement],
    path: str | os.PathLike[str],
) -> None:
    """Write measurements to a file atomically.

    Args:
        measurements: one measurement, a comparison, a sweep, or several measurements by name.
        path: the file. One that ends in ``.csv`` gets the samples with the columns of
            :meth:`Measurement.to_frame`; one that ends in ``.json`` or has no extension gets JSON
            with everything.

    Raises:
        InputError: the path has another extension, there is no measurement, a measurement for CSV
            has no name, or the file cannot be written.
    """
    as_csv = extension_of(path, (".json", ".csv")) == ".csv"
    if isinstance(measurements, codec.Stored):
        if not as_csv:
            measurements.save(path)
            return
        measurements = measurements_of(measurements)
    several = Measurements(measurements)
    require(several, f"{path}: there must be at least one measurement to write, got none")
    require(
        not as_csv or "" not in several,
        f"{path}: each measurement must have a name in CSV, got an empty name",
    )
    write_file(path, several.to_csv() if as_csv else several.to_json())

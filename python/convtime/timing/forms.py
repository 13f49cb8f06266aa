"""Measurement as pandas data frames, as CSV and as torch.utils.benchmark measurements."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.errors import MissingPackageError

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark

    from convtime.timing.measurement import Measurement

#: Key of the full measurement in the metadata of torch.utils.benchmark and pytest-benchmark.
PAYLOAD = "convtime"

#: What another tool does not report.
UNKNOWN = "unknown"

#: Columns that describe a sample, in addition to name, number and time.
CONDITIONS = ("method", "queue", "cache", "placement", "pages", "regime", "device")
COLUMNS = ("name", "sample", "seconds", "discarded", "sm_clock_hz", *CONDITIONS, "gpu")


# The csv writer quotes cells that contain a character of its line end; readers end lines at "\r".
_QUOTED_END = "\r\n"


def rows(measured: Measurement) -> Iterator[dict[str, Any]]:
    """Yield a row for each sample, with :data:`COLUMNS`; discarded samples are last."""
    same: dict[str, Any] = {
        condition: str(getattr(measured, condition)) for condition in CONDITIONS
    }
    same["gpu"] = measured.provenance.get("gpu")
    for discarded, samples in ((False, measured.seconds), (True, measured.discarded)):
        clocks_hz = () if discarded else measured.sm_clocks_hz
        pairs = itertools.zip_longest(samples, clocks_hz)
        for number, (seconds, clock_hz) in enumerate(pairs):
            yield {
                "name": measured.name,
                "sample": number,
                "seconds": seconds,
                "discarded": discarded,
                "sm_clock_hz": clock_hz,
                **same,
            }


def to_frame(measurements: Iterable[Measurement]) -> pandas.DataFrame:
    """Convert :func:`rows` to a data frame.

    Raises:
        ImportError: pandas is not installed.
    """
    return frame_of(itertools.chain.from_iterable(map(rows, measurements)), COLUMNS)


def to_csv(measurements: Iterable[Measurement]) -> str:
    """Convert :func:`rows` to CSV, without rounding numbers."""
    return csv_of(itertools.chain.from_iterable(map(rows, measurements)), COLUMNS)


def frame_of(found: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """Convert rows to a data frame.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingPackageError(
            "data frames require pandas, which is not installed; run pip install 'convtime[frame]'"
        ) from error
    return pandas.DataFrame(found, columns=list(columns))


def csv_of(found: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Convert rows to CSV, without rounding numbers."""
    lines = _Lines()
    writer = csv.DictWriter(lines, fieldnames=columns, lineterminator=_QUOTED_END)
    writer.writeheader()
    writer.writerows(found)
    return "".join(lines)


class _Lines(list[str]):
    """A list of written lines, each with a plain newline."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix(_QUOTED_END) + "\n")


def to_torch(
    measured: Measurement, label: str | None, sub_label: str | None, description: str | None
) -> torch.utils.benchmark.Measurement:
    """Convert samples to PyTorch's measurement; see :meth:`convtime.Measurement.to_torch`."""
    from torch.utils import benchmark  # slow to import, and prints a warning without a GPU

    return benchmark.Measurement(
        number_per_run=1,
        raw_times=list(measured.seconds),
        task_spec=benchmark.TaskSpec(
            stmt=measured.name,
            setup="",
            label=label or measured.device,
            sub_label=sub_label or measured.name,
            description=description or measured.method.used,
            num_threads=measured.provenance.get("threads") or 1,
        ),
        metadata={PAYLOAD: measured.to_dict()},
    )

"""Samples in the forms of pandas, of CSV and of torch.utils.benchmark."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas
    import torch.utils.benchmark

#: Under which torch.utils.benchmark's and pytest-benchmark's room for more holds all that there is.
PAYLOAD = "convtime"

#: What a row says of its sample, beside name, number and time.
CONDITIONS = ("method", "queue", "cache", "placement", "pages", "regime", "device")
COLUMNS = ("name", "sample", "seconds", "discarded", "sm_clock_hz", *CONDITIONS, "gpu")


# The writer quotes what has a letter of a line's end in it, and to readers a bare return is one.
_QUOTED_END = "\r\n"


class Samples(Protocol):
    """What of a measurement goes into a row."""

    @property
    def name(self) -> str: ...
    @property
    def seconds(self) -> tuple[float, ...]: ...
    @property
    def discarded(self) -> tuple[float, ...]: ...
    @property
    def sm_clocks_hz(self) -> tuple[float | None, ...]: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...


def rows(measured: Samples) -> Iterator[dict[str, Any]]:
    """A row for each sample, with :data:`COLUMNS`; those that were discarded are the last."""
    same = {condition: getattr(measured, condition) for condition in CONDITIONS}
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


def to_frame(measurements: Iterable[Samples]) -> pandas.DataFrame:
    """A data frame of :func:`rows`.

    Raises:
        ImportError: where pandas is not installed.
    """
    return frame_of(itertools.chain.from_iterable(map(rows, measurements)), COLUMNS)


def to_csv(measurements: Iterable[Samples]) -> str:
    """:func:`rows` as CSV, each number with all of its digits."""
    return csv_of(itertools.chain.from_iterable(map(rows, measurements)), COLUMNS)


def frame_of(found: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """Rows as a data frame.

    Raises:
        ImportError: where pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "to_frame needs pandas; install it with pip install 'convtime[frame]'"
        ) from error
    return pandas.DataFrame(found, columns=list(columns))


def csv_of(found: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as CSV, each number with all of its digits."""
    lines = _Lines()
    writer = csv.DictWriter(lines, fieldnames=columns, lineterminator=_QUOTED_END)
    writer.writeheader()
    writer.writerows(found)
    return "".join(lines)


class _Lines(list[str]):
    """Lines as they are written, with a plain end each."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix(_QUOTED_END) + "\n")


def to_torch(
    seconds: Sequence[float],
    *,
    name: str,
    label: str,
    sub_label: str,
    description: str,
    threads: int,
    payload: Mapping[str, Any],
) -> torch.utils.benchmark.Measurement:
    """Samples as PyTorch's own kind of measurement; ``label`` and so on are its TaskSpec's."""
    from torch.utils import benchmark  # slow to import, and prints a warning without a GPU

    return benchmark.Measurement(
        number_per_run=1,
        raw_times=list(seconds),
        task_spec=benchmark.TaskSpec(
            stmt=name,
            setup="",
            label=label,
            sub_label=sub_label,
            description=description,
            num_threads=threads,
        ),
        metadata={PAYLOAD: dict(payload)},
    )

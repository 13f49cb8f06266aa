"""Rows of results as pandas data frames and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convtime.core.errors import MissingPackageError

if TYPE_CHECKING:
    import pandas

#: Key of the full measurement in the metadata of torch.utils.benchmark and pytest-benchmark.
PAYLOAD = "convtime"

#: What another tool does not report.
UNKNOWN = "unknown"

# The csv writer quotes cells that contain a character of its line end; readers end lines at "\r".
_QUOTED_END = "\r\n"


def frame_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
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
    return pandas.DataFrame(rows, columns=list(columns))


def csv_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Convert rows to CSV, without rounding numbers."""
    lines = _Lines()
    writer = csv.DictWriter(lines, fieldnames=columns, lineterminator=_QUOTED_END)
    writer.writeheader()
    writer.writerows(rows)
    return "".join(lines)


class _Lines(list[str]):
    """A list of written lines, each with a plain newline."""

    def write(self, line: str) -> None:
        self.append(line.removesuffix(_QUOTED_END) + "\n")

"""Several measurements by name, as a file or another tool has them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec

from convtime.core import codec
from convtime.timing import forms
from convtime.timing.measurement import SAMPLE_COLUMNS, Measurement
from convtime.view.shown import Shown

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Measurements(
    codec.Stored, Shown, Mapping[str, Measurement], show="convtime.timing.show_measurements"
):
    """Measurements by name, in the order of their source: a read-only mapping.

    Attributes:
        measurements: the measurements; each has its key as its name.
    """

    measurements: Annotated[Mapping[str, Measurement], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        named = {
            name: measured if measured.name == name else dataclasses.replace(measured, name=name)
            for name, measured in self.measurements.items()
        }
        object.__setattr__(self, "measurements", named)

    def __getitem__(self, name: str) -> Measurement:
        return self.measurements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    def to_frame(self) -> pandas.DataFrame:
        """Return all samples as one data frame; see :meth:`Measurement.to_frame`.

        Raises:
            ImportError: pandas is not installed.
        """
        return forms.frame_of(self._rows(), SAMPLE_COLUMNS)

    def to_csv(self) -> str:
        """Return the rows of :meth:`to_frame` as CSV, without rounding numbers."""
        return forms.csv_of(self._rows(), SAMPLE_COLUMNS)

    def _rows(self) -> Iterator[dict[str, object]]:
        return itertools.chain.from_iterable(
            measured.to_rows() for measured in self.measurements.values()
        )

"""Whether candidates of a comparison compute the same."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What was found of a candidate's result beside the baseline's.

    Attributes:
        same: whether the results are the same, within the tolerance that the sentence names; None
            where that is not known.
        sentence: by how much the results differ, or why that is not known.
        largest_error: the largest absolute difference of two elements; None where there is none
            that is a number.
    """

    same: bool | None
    sentence: str
    largest_error: float | None = None

    def __str__(self) -> str:
        heading = {True: "same result", False: "OTHER RESULT", None: "same result not known"}
        return f"{heading[self.same]}: {self.sentence}"

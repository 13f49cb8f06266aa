"""Agreement of the results of a comparison's candidates."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Agreement of a candidate's result with the baseline's.

    Attributes:
        same: whether the results are equal within the tolerance that the sentence names; None if
            this is unknown.
        sentence: by how much the results differ, or why this is unknown.
        largest_error: the largest absolute difference of two elements; None if no difference is a
            number.
            that is a number.
    """

    same: bool | None
    sentence: str
    largest_error: float | None = None

    def __str__(self) -> str:
        heading = {True: "same result", False: "OTHER RESULT", None: "same result not known"}
        return f"{heading[self.same]}: {self.sentence}"

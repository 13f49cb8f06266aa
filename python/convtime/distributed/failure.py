"""The failure of a measurement in a group, and the rank that caused it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Literal

from convtime.core.errors import InputError, first_line


class RankError(RuntimeError):
    """A rank raised an exception, ended, hung or fell behind, which ended the measurement."""


#: ``input``: the ranks' arguments do not fit; ``raised``: an exception; ``ended``: the process is
#: gone; ``late``: it did not come as far as the others in time; ``absent``: it did not take part.
Kind = Literal["input", "raised", "ended", "late", "absent"]


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a measurement failed.

    Attributes:
        kind: kind of the failure.
        rank: rank in the group that caused it; None if that is unknown.
        reason: what it did, in words that follow its name.
        calling: whether calls had begun, so that the group's communication may be incomplete.
    """

    kind: Kind
    rank: int | None
    reason: str
    calling: bool = False

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Failure:
        """Reverse :meth:`to_json`."""
        return cls(**json.loads(text))

    def error(self, aborted: str, names: Sequence[str]) -> Exception:
        """Return the exception that each rank raises.

        Args:
            aborted: what happened to the group's communication, for a failure while calling.
            names: names of the ranks in a sentence.
        """
        if self.kind == "input":
            return InputError(self.reason)
        who = "a rank that could not be determined" if self.rank is None else names[self.rank]
        after = ""
        if self.calling:
            after = (
                f"; {aborted}, and the process group cannot be used any more: call "
                "destroy_process_group, and initialize it again"
            )
        return RankError(f"{who} {self.reason}, which ended the measurement on every rank{after}")


def of_exception(error: BaseException) -> str:
    """Return the reason for a rank whose call or timing raised an exception."""
    if isinstance(error, SystemExit):
        return f"exited with code {error.code!r}"
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    return f"raised {first_line(error)}"


def is_of_communication(error: BaseException) -> bool:
    """Return whether an exception may be the consequence of another rank's failure.

    NCCL has an exception type; Gloo raises a RuntimeError whose text names its source file.
    """
    if isinstance(error, TimeoutError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    message = str(error).lower()
    signs = ("gloo", "nccl", "connection closed by peer", "timed out waiting", "connection reset")
    return "DistError" in names or any(sign in message for sign in signs)

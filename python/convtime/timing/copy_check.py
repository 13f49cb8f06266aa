"""Whether copies may stand for what was copied: calls have to leave what they are given alone."""

from __future__ import annotations

import torch

from convtime.timing.copying import Original, Storages
from convtime.timing.neutral import without_modes
from convtime.timing.placement import Copies, bytes_of, is_wide
from convtime.timing.reach import contents_below, reachable


class Check:
    """Whether calls leave what they are given as it is: asked after the first one, on a copy.

    Where that one wrote something, a second call shows whether it writes the same again, as to a
    tensor for its result: then all copies get what the first one wrote, and calls change nothing.

    Attributes:
        adds_gradients: whether calls are to leave gradients, as backward passes do.
        reason: why the copies cannot go on being called, as part of a sentence.
    """

    def __init__(self, original: Original, copies: Copies) -> None:
        self._original = original
        self._copies = copies
        self._objects = (
            [] if original.is_flat else contents_below(original.roots_of(copies.candidates[0]))
        )
        self._is_second = False
        self.adds_gradients = False
        self.reason = ""

    def __call__(self) -> bool | None:
        """True or False, or None where it takes another call on the same copy to tell.

        What calls wrote to the copy, bit by bit, the original gets, too.
        """
        written: set[int] = set()
        with without_modes():
            try:
                written = self._look()
                if self._is_second and not (written or self.reason):
                    self._copies.refill()
            except torch.OutOfMemoryError:
                self.reason = "there is no memory to check that a call does not write to them"
        if written and not self.reason:
            if not self._is_second:
                self._is_second = True
                return None
            self.reason = f"a call writes to {self._names(written)}, and not the same each time"
        self._objects.clear()
        if self.reason:
            self._original.origins.clear()
            self._copies.release()
        return not self.reason

    def _look(self) -> set[int]:
        """What was written to since the last look, or since it was copied."""
        originals, called = self._original.storages, self._copies.storages[0]
        if self._original.device.type == "cuda":
            torch.cuda.synchronize(self._original.device)  # the call may use other streams
        resized = {key for key in originals if called[key].nbytes() != originals[key].nbytes()}
        if resized:
            self.reason = f"a call resizes {self._names(resized)}"
            return resized
        written = _different(originals, called)
        elsewhere: set[int] = set()
        if written and not self._is_second:
            elsewhere = written & _different(originals, self._copies.storages[1])
        for key in written - elsewhere:
            bytes_of(originals[key]).copy_(bytes_of(called[key]))
        if elsewhere:
            self.reason = f"a call writes to {self._names(elsewhere)}, whatever it is called with"
        else:
            self.reason = self._changed() or self._gradients()
        return written

    def _names(self, keys: set[int]) -> str:
        return ", ".join(self._original.names_of(keys))

    def _changed(self) -> str:
        """Objects that a copy has of its own would not go through the same states."""
        for before in self._objects:
            if not before.is_unchanged():
                return f"a call changes what it is called with, a {type(before.of).__name__}"
        return ""

    def _gradients(self) -> str:
        if self.adds_gradients:
            return ""
        for found in reachable(self._original.roots_of(self._copies.candidates[0])):
            if isinstance(found, torch.Tensor) and found.is_leaf and found.grad is not None:
                return "a call adds to gradients of its arguments"
        return ""


def _different(some: Storages, others: Storages) -> set[int]:
    """Which storages hold other bits than those of the same key; few kernels, one wait."""
    keys = [key for key, storage in some.items() if storage.nbytes()]
    flags = [_differ(bytes_of(some[key]), bytes_of(others[key])) for key in keys]
    return {key for key, flag in zip(keys, torch.stack(flags).tolist(), strict=True) if flag}


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if is_wide(one) and is_wide(other):  # bytes are compared a few at a time
        one, other = one.view(torch.int64), other.view(torch.int64)
    return (one != other).any()

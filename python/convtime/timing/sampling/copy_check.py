"""Check that copies can replace the original: calls must not modify their inputs."""

from __future__ import annotations

import torch

from convtime.timing.sampling.copying import Original, Storages
from convtime.timing.sampling.object_graph import (
    contents_of,
    holds_still,
    objects_below,
    without_modes,
)
from convtime.timing.sampling.placement import Copies, bytes_of, is_wide


class Check:
    """Checks after the first call, on a copy, whether calls modify their inputs.

    If the first call wrote something, a second call shows whether it writes the same again, as to a
    tensor for its result. Then all copies get the values that the first call wrote, and later calls
    change nothing.

    Attributes:
        adds_gradients: whether calls are expected to leave gradients, as backward passes do.
        reason: why the copies cannot be used any longer, as part of a sentence.
    """

    def __init__(self, original: Original, copies: Copies) -> None:
        self._original = original
        self._copies = copies
        # Objects that the copy owns: each copy's would have a different state.
        self._contents: list[tuple[object, tuple[object, ...]]] = []
        if not original.is_flat:
            roots = original.roots_of(copies.candidates[0])
            self._contents += ((held, contents_of(held)) for held in objects_below(roots))
        self._is_second = False
        self.adds_gradients = False
        self.reason = ""

    def __call__(self) -> bool | None:
        """Return True or False, or None if it takes another call on the same copy to decide.

        The original also gets the values that calls wrote to the copy, bit by bit.
        """
        written: set[int] = set()
        with without_modes():
            try:
                written = self._look()
                if self._is_second and not (written or self.reason):
                    self._copies.refill()
            except torch.OutOfMemoryError:
                self.reason = "there is not enough memory to check that calls do not write to them"
        if written and not self.reason:
            if not self._is_second:
                self._is_second = True
                return None
            self.reason = f"a call writes different values to {self._names(written)} each time"
        self._contents.clear()
        if self.reason:
            self._original.origins.clear()
            self._copies.release()
        return not self.reason

    def _look(self) -> set[int]:
        """Return the storages written to since the last check, or since the copy was made."""
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
            self.reason = f"a call on a copy writes to the original of {self._names(elsewhere)}"
        else:
            self.reason = self._side_effect()
        return written

    def _names(self, keys: set[int]) -> str:
        return ", ".join(self._original.names_of(keys))

    def _side_effect(self) -> str:
        """Describe an effect of the call other than writing to storages; empty for none."""
        for held, contents in self._contents:
            if not holds_still(held, contents):
                return f"a call modifies one of its inputs, a {type(held).__name__}"
        if self.adds_gradients:
            return ""
        for held in objects_below(self._original.roots_of(self._copies.candidates[0])):
            if isinstance(held, torch.Tensor) and held.is_leaf and held.grad is not None:
                return "a call adds to gradients of its arguments"
        return ""


def _different(some: Storages, others: Storages) -> set[int]:
    """Return the keys of storages with different bits; uses few kernels and one synchronization."""
    keys = [key for key, storage in some.items() if storage.nbytes()]
    flags = [_differ(bytes_of(some[key]), bytes_of(others[key])) for key in keys]
    return {key for key, flag in zip(keys, torch.stack(flags).tolist(), strict=True) if flag}


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if is_wide(one) and is_wide(other):  # a comparison of bytes handles only a few at a time
        one, other = one.view(torch.int64), other.view(torch.int64)
    return (one != other).any()

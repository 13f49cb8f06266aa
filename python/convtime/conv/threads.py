"""Calls in a thread that no thread-local cache knows anything of."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import torch

Result = TypeVar("Result")


class FreshThread:
    """A thread in which no thread-local cache knows anything before its first call.

    Gradients are not recorded in it. Used as a context manager, at whose end the thread ends.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepares; the thread starts with the first call.

        Args:
            device: What the calls compute on.
        """
        self._device = device
        self._pool = ThreadPoolExecutor(1, "convtime fresh thread")
        self._has_context = device.type != "cuda"

    def __enter__(self) -> FreshThread:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()

    def call(self, function: Callable[[], Result]) -> Result:
        """Calls a function in the thread, on the caller's current stream, and waits for it.

        Whatever it raises passes through.
        """
        on_gpu = self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device) if on_gpu else None
        return self._pool.submit(self._run, function, stream).result()

    def _run(self, function: Callable[[], Result], stream: torch.cuda.Stream | None) -> Result:
        with torch.no_grad(), torch.cuda.stream(stream):
            if not self._has_context:
                # Makes the CUDA context the thread's: without one, cuDNN's engines that go through
                # the driver fail in their first call, and PyTorch takes another plan.
                torch.cuda.synchronize(self._device)
                self._has_context = True
            return function()


def in_fresh_thread(function: Callable[[], Result], device: torch.device) -> Result:
    """Makes one call in a FreshThread."""
    with FreshThread(device) as thread:
        return thread.call(function)

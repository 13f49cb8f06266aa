"""Run calls in a thread whose thread-local caches are empty."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


class FreshThread(contextlib.AbstractContextManager["FreshThread"]):
    """A thread whose thread-local caches are empty before its first call.

    It does not record gradients. Use it as a context manager; the thread ends on exit.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepare the thread; it starts with the first call.

        Args:
            device: The device that the calls use.
        """
        self._device = device
        self._pool = ThreadPoolExecutor(1, "convtime fresh thread")
        self._has_context = device.type != "cuda"

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown()

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in the thread, on the caller's current stream, and wait for it.

        Exceptions propagate to the caller.
        """
        on_gpu = self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device) if on_gpu else None
        return self._pool.submit(self._run, function, stream).result()

    def _run(self, function: Callable[[], Result], stream: torch.cuda.Stream | None) -> Result:
        with torch.no_grad(), torch.cuda.stream(stream):
            if not self._has_context:
                # Attach the CUDA context to the thread. Otherwise, cuDNN's driver-based engines
                # fail on their first call, and PyTorch takes another plan.
                torch.cuda.synchronize(self._device)
                self._has_context = True
            return function()


def in_fresh_thread(function: Callable[[], Result], device: torch.device) -> Result:
    """Make one call in a FreshThread."""
    with FreshThread(device) as thread:
        return thread.call(function)

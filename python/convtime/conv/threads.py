"""Calls in a thread that no thread-local cache knows anything of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def in_fresh_thread(function: Callable[[], Result], device: torch.device) -> Result:
    """Calls a function where no thread-local cache knows anything yet; gradients are not recorded.

    It runs on the calling thread's current stream. Whatever it raises passes through.
    """
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
    outcome: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                if stream is not None:
                    # Makes the CUDA context the thread's: without one, cuDNN's engines that go
                    # through the driver fail in their first call, and PyTorch takes another plan.
                    torch.cuda.synchronize(device)
                outcome.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="convtime fresh thread")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]

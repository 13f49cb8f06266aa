"""Find the cuDNN plans that PyTorch builds, from the log of a child process.

PyTorch's copy of the cuDNN frontend logs every plan that it builds. It reads the path of the log,
CUDNN_FRONTEND_LOG_FILE, when the library is loaded. This process has already loaded it, so a child
process is needed. PyTorch caches plans per thread and builds none that are cached, so the child
runs each pass in a new thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from convtime.conv.call import FPROP, ConvCall
from convtime.conv.plan_log import PlanLog, log_of
from convtime.conv.threads import in_fresh_thread
from convtime.core.child import Child, ChildError, job


class PlanOracle(Child):
    """A child process that reports which plans PyTorch builds, for any number of problems.

    It starts with the first question, and restarts with the next question after it died. Use it as
    a context manager. It handles one problem at a time, so a crash affects only the answer for that
    problem.
    """

    def __init__(self, device: torch.device, timeout: float = 120.0) -> None:
        """Prepare the process; it is not started yet.

        Args:
            device: The GPU that the child uses, as this process numbers them.
            timeout: Seconds allowed per problem; the child's startup may take longer.
        """
        self._device = device
        self._timeout = timeout
        self._folder = tempfile.TemporaryDirectory(prefix="convtime-oracle-")
        self._log = Path(self._folder.name, "frontend.log")
        variables = {"CUDNN_FRONTEND_LOG_INFO": "1", "CUDNN_FRONTEND_LOG_FILE": str(self._log)}
        super().__init__(job(_begin, device, self._log), variables=variables)

    def __exit__(self, *exception: Any) -> None:
        self.end()
        super().__exit__(*exception)
        self._folder.cleanup()

    def ask(self, call: ConvCall, passes: Iterable[str]) -> dict[str, PlanLog]:
        """Return the log for each pass of a call.

        If a pass fails or the child dies during it, the result has no plan and gives the reason.
        """
        passes = list(passes)
        question = job(_observe, call, passes, self._device, self._log)
        try:
            logs: dict[str, PlanLog] = self.call(question, self._timeout)
        except ChildError as error:
            unknown = PlanLog(unknown=f"the child process that asks PyTorch {error}")
            return dict.fromkeys(passes, unknown)
        if any("CUDA error" in log.unknown for log in logs.values()):
            self.end()  # after such an error every later CUDA call of the process fails
        return logs


def _begin(device: torch.device, log: Path) -> None:
    """Check that the device is usable, and empty the log of an earlier process."""
    torch.ones(1, device=device)
    if log.exists():  # PyTorch empties it with its first entry, but sizes are taken before
        os.truncate(log, 0)


def _observe(
    call: ConvCall, passes: list[str], device: torch.device, log: Path
) -> dict[str, PlanLog]:
    """Run passes as PyTorch does, and read the log entries of each."""
    logs: dict[str, PlanLog] = {}
    try:
        tensors = call.tensors(device, backward=passes != [FPROP])
        with call.flags.applied():
            for name in passes:
                run = partial(in_fresh_thread, call.pytorch_call(name, tensors), device)
                try:
                    logs[name] = log_of(run, log)
                except RuntimeError as error:
                    logs[name] = _failed(error)
    except RuntimeError as error:
        logs |= {name: _failed(error) for name in passes if name not in logs}
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the parent process needs the memory
    return logs


def _failed(error: RuntimeError) -> PlanLog:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return PlanLog(unknown=f"PyTorch's own call failed: {lines[0]}")

"""Find the cuDNN plans that PyTorch builds, from the log of a child process.

PyTorch's copy of the cuDNN frontend logs every plan that it builds. It reads the path of the log,
CUDNN_FRONTEND_LOG_FILE, when the library is loaded. This process has already loaded it, so a child
process is needed. PyTorch caches plans per thread and builds none that are cached, so the child
runs each pass in a new thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import torch

from convtime.conv.call import FPROP, ConvCall
from convtime.conv.plan_log import PlanLog, logged
from convtime.conv.threads import in_fresh_thread
from convtime.core import codec

_STARTUP_SECONDS = 180.0  # importing torch from a cold disk, and CUDA initialization
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")
# Load this module in the child without convtime/__init__.py, which would load the compiled core.
_BOOT = """
import json, sys, types
sys.path[:] = json.loads(sys.argv[1])
package = types.ModuleType("convtime")
package.__path__ = [sys.argv[2]]
sys.modules["convtime"] = package
from convtime.conv import plan_oracle
plan_oracle.serve(sys.argv[3], sys.argv[4])
"""


class PlanOracle(contextlib.AbstractContextManager["PlanOracle"]):
    """A child process that reports which plans PyTorch builds, for any number of problems.

    It starts with the first question, and restarts with the next question after it died. Use it as
    a context manager, or call close(). It handles one problem at a time, so a crash affects only
    the answer for that problem.
    """

    def __init__(self, device: torch.device, timeout: float = 120.0) -> None:
        """Prepare the process; it is not started yet.

        Args:
            device: The GPU that the child uses, as this process numbers them.
            timeout: Seconds allowed per problem; the child's startup may take longer.
        """
        self._device = device
        self._timeout = timeout
        self._child: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(prefix="convtime-oracle-")

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        self._end_child()
        self._folder.cleanup()

    def ask(self, call: ConvCall, passes: Iterable[str]) -> dict[str, PlanLog]:
        """Return the log for each pass of a call.

        If a pass fails or the child dies during it, the result has no plan and gives the reason.
        """
        passes = list(passes)
        if self._child is None and (error := self._start_child()):
            return {name: PlanLog(unknown=error) for name in passes}
        question = {"call": codec.encode(call), "passes": passes}
        answer, error = self._exchange(json.dumps(question), self._timeout)
        if answer is None:
            return {name: PlanLog(unknown=error) for name in passes}
        logs = {name: codec.decode(PlanLog, answer[name]) for name in passes}
        if any("CUDA error" in log.unknown for log in logs.values()):
            self._end_child()  # after such an error every later CUDA call of the process fails
        return logs

    def _start_child(self) -> str:
        """Start the child; return an error, or an empty string if it answers."""
        log = Path(self._folder.name, "frontend.log")
        command = [
            sys.executable, "-I", "-c", _BOOT, json.dumps(sys.path),
            str(Path(__file__).parents[1]), str(self._device), str(log),
        ]  # fmt: skip
        environment = os.environ | {
            "CUDNN_FRONTEND_LOG_INFO": "1",
            "CUDNN_FRONTEND_LOG_FILE": str(log),
        }
        with self._error_file().open("wb") as errors:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self._lines = queue.Queue()
        reader = threading.Thread(
            target=_read_lines, args=(self._child.stdout, self._lines), daemon=True
        )
        reader.start()
        _, error = self._exchange(None, _STARTUP_SECONDS)
        return error

    def _exchange(self, line: str | None, timeout: float) -> tuple[Any, str]:
        """Send a line, if any; return the child's answer, or None and the reason."""
        assert self._child is not None
        assert self._child.stdin is not None
        # A child that has exited rejects writes; its earlier output is more informative.
        with contextlib.suppress(BrokenPipeError):
            if line is not None:
                self._child.stdin.write(line + "\n")
                self._child.stdin.flush()
        try:
            answer = self._lines.get(timeout=timeout)
        except queue.Empty:
            self._end_child()
            return None, f"the child process that asks PyTorch gave no answer in {timeout:.0f} s"
        if answer is None:
            status = self._child.wait()
            self._end_child()
            return None, (
                f"the child process that asks PyTorch ended with status {status}"
                f"{self._last_error()}"
            )
        return json.loads(answer), ""

    def _error_file(self) -> Path:
        return Path(self._folder.name, "errors.txt")

    def _last_error(self) -> str:
        """Return the last exception, which PyTorch's hints may follow, or else the last line."""
        lines = self._error_file().read_text(errors="replace").strip().splitlines()
        raised = [line for line in lines if _EXCEPTION.match(line)]
        return f": {(raised or lines)[-1]}" if lines else ""

    def _end_child(self) -> None:
        if self._child is None:
            return
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.kill()
        self._child.wait()
        self._child = None


def _read_lines(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def serve(device: str, log: str) -> None:
    """Run the child: answer each line of JSON with a line of JSON, until stdin closes."""
    # Libraries may print to stdout, which must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(document: object) -> None:
        print(json.dumps(document), file=answers, flush=True)

    place = torch.device(device)
    torch.ones(1, device=place)  # report an unusable GPU at startup
    answer("ready")
    for line in sys.stdin:
        question = json.loads(line)
        call = codec.decode(ConvCall, question["call"])
        answer(_observe(call, question["passes"], place, Path(log)))


def _observe(
    call: ConvCall, passes: list[str], device: torch.device, log: Path
) -> dict[str, dict[str, Any]]:
    """Run passes as PyTorch does, and read the log entries of each."""
    found: dict[str, PlanLog] = {}
    try:
        tensors = call.tensors(device, backward=passes != [FPROP])
        with call.flags.applied():
            for name in passes:
                found[name] = _observe_pass(call.pytorch_call(name, tensors), device, log)
    except RuntimeError as error:
        found |= {name: _failed(error) for name in passes if name not in found}
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the parent process needs the memory
    return {name: codec.encode(plan_log) for name, plan_log in found.items()}


def _observe_pass(call: Callable[[], object], device: torch.device, log: Path) -> PlanLog:
    try:
        return logged(lambda: in_fresh_thread(call, device), log)
    except RuntimeError as error:
        return _failed(error)


def _failed(error: RuntimeError) -> PlanLog:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return PlanLog(unknown=f"PyTorch's own call failed: {lines[0]}")

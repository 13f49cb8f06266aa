"""Which cuDNN plans PyTorch builds, from the log that it writes in a child process.

The copy of the cuDNN frontend inside of PyTorch writes down every plan that it builds, to the file
that CUDNN_FRONTEND_LOG_FILE named when the library was loaded. This process has loaded it already,
so the answer comes from a child. PyTorch keeps its plans for each thread and builds none that it
has, so the child runs each pass in a thread of its own.
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
from types import TracebackType
from typing import IO, Any

import torch

from convtime.conv.call import FPROP, ConvCall
from convtime.conv.plan_log import PlanLog, logged
from convtime.conv.threads import in_fresh_thread
from convtime.core import codec

_STARTUP_SECONDS = 180.0  # importing torch from a cold disk, and CUDA's own start
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")
# Loads this module in the child without convtime/__init__.py, and with it the compiled core.
_BOOT = """
import json, sys, types
sys.path[:] = json.loads(sys.argv[1])
package = types.ModuleType("convtime")
package.__path__ = [sys.argv[2]]
sys.modules["convtime"] = package
from convtime.conv import plan_oracle
plan_oracle.serve(sys.argv[3], sys.argv[4])
"""


class PlanOracle:
    """A child process that says which plans PyTorch builds, for any number of problems.

    It is started with the first question, and again with the next one after it died. Used as a
    context manager, or closed by close(). Its answers to one problem at a time make it robust: what
    one problem does to it is that problem's answer alone.
    """

    def __init__(self, device: torch.device, timeout: float = 120.0) -> None:
        """Prepares; nothing is started yet.

        Args:
            device: The GPU that the child uses, as this process numbers them.
            timeout: Seconds that one problem may take; the child's own start has more.
        """
        self._device = device
        self._timeout = timeout
        self._child: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(prefix="convtime-oracle-")

    def __enter__(self) -> PlanOracle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child."""
        self._end_child()
        self._folder.cleanup()

    def ask(self, call: ConvCall, passes: Iterable[str]) -> dict[str, PlanLog]:
        """What PyTorch's log says of each pass of a call.

        A pass that fails, or that the child does not survive, has no chosen plan, and says why.
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
            self._end_child()  # after such an error every later call of the process fails
        return logs

    def _start_child(self) -> str:
        """Returns an error, empty where it answers."""
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
        """Sends a line, if any, and returns the child's answer, or None and why there is none."""
        assert self._child is not None
        assert self._child.stdin is not None
        # A child that is gone refuses what is written; what it said before tells more.
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
        """The last exception that was told, which PyTorch's hints may follow, or the last line."""
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
    """The child: answers a line of JSON for each line of JSON, until its input ends."""
    # Libraries may print; what they print must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(document: object) -> None:
        print(json.dumps(document), file=answers, flush=True)

    place = torch.device(device)
    torch.ones(1, device=place)  # so that a GPU that cannot be used is the start's error
    answer("ready")
    for line in sys.stdin:
        question = json.loads(line)
        call = codec.decode(ConvCall, question["call"])
        answer(_observe(call, question["passes"], place, Path(log)))


def _observe(
    call: ConvCall, passes: list[str], device: torch.device, log: Path
) -> dict[str, dict[str, Any]]:
    """Runs passes as PyTorch does, and reads what the log gained with each."""
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
            torch.cuda.empty_cache()  # the process that asks needs the memory
    return {name: codec.encode(plan_log) for name, plan_log in found.items()}


def _observe_pass(call: Callable[[], object], device: torch.device, log: Path) -> PlanLog:
    try:
        return logged(lambda: in_fresh_thread(call, device), log)
    except RuntimeError as error:
        return _failed(error)


def _failed(error: RuntimeError) -> PlanLog:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return PlanLog(unknown=f"PyTorch's own call failed: {lines[0]}")

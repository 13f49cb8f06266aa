"""Which cuDNN plans PyTorch builds, from the log that it writes in a child process.

The copy of the cuDNN frontend inside of PyTorch writes down every plan that it builds, to the file
that CUDNN_FRONTEND_LOG_FILE named when the library was loaded. This process has loaded it already,
so the answer comes from a child. PyTorch keeps its plans for each thread and builds none that it
has, so the child runs each pass in a thread of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch

from convtime._json import with_tuples
from convtime.conv_problem import FPROP, ConvProblem, in_fresh_thread

_STARTUP_SECONDS = 180.0  # importing torch from a cold disk, and CUDA's own start
# Loads this module in the child without convtime/__init__.py, and with it the compiled core.
_BOOT = """
import json, sys, types
sys.path[:] = json.loads(sys.argv[1])
package = types.ModuleType("convtime")
package.__path__ = [sys.argv[2]]
sys.modules["convtime"] = package
from convtime import plan_oracle
plan_oracle.serve(sys.argv[3], sys.argv[4])
"""

_PLAN = re.compile(
    r"CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR : (?P<tag>\S+), "
    r"numeric_notes:\[(?P<numerical>[^\]]*)\] behavior_notes:\[(?P<behavior>[^\]]*)\] "
    r"workSpaceSize: (?P<workspace>\d+)"
)
_TIMED = re.compile(r"Plan (?P<tag>\S+) took +(?P<milliseconds>\S+)")
_TENSOR = re.compile(
    r"CUDNN_BACKEND_TENSOR_DESCRIPTOR :\s+Datatype: (?P<type>\S+)\s+Id: (?P<id>\d+)\s.*?"
    r"Dim \[ (?P<sizes>[\d,]+) \]\s+Str \[ (?P<strides>[\d,-]+) \].*?Alignment: (?P<alignment>\d+)",
    re.DOTALL,
)
_CONVOLUTION = re.compile(
    r"CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR : Datatype: (?P<type>\S+) Mode: \S+ "
    r"Num Dimensions: \d+ PadLower \[(?P<padding>[^\]]*)\] PadUpper \[[^\]]*\] "
    r"Dilation \[(?P<dilation>[^\]]*)\] Stride \[(?P<stride>[^\]]*)\]"
)


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """A tensor as cuDNN is told of it.

    Attributes:
        sizes: Of each dimension.
        strides: Of each dimension, in elements.
        alignment: Of its address, in bytes.
        data_type: cuDNN's name in lower case, e.g. "half".
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int
    data_type: str


@dataclasses.dataclass(frozen=True)
class LoggedPlan:
    """A plan as the frontend's log describes it.

    Attributes:
        tag: Operation, engine and knobs, e.g. "ConvFwd_eng38_k2=8_k13=1".
        numerical_notes: cuDNN's names, less their common beginning; so are behavior_notes.
        workspace_bytes: What the plan needs beside its tensors.
    """

    tag: str
    numerical_notes: tuple[str, ...]
    behavior_notes: tuple[str, ...]
    workspace_bytes: int


@dataclasses.dataclass(frozen=True)
class PlanLog:
    """What PyTorch's log says of one call.

    Attributes:
        chosen: The plan that PyTorch keeps; None where the log does not tell.
        unknown: Why there is no chosen one; empty where there is.
        refused: Tags of the plans that were built before it and could not be used; with
            cudnn.benchmark on, of the candidates that failed.
        source: "heuristic" or "benchmark".
        x: The descriptor of the input of cuDNN's convolution; None where the log has none. So are
            w, and y (the output's). A transposed convolution's own output is x.
        compute_type: cuDNN's name in lower case, e.g. "float".
        padding: One number a spatial dimension; so are stride and dilation.
    """

    chosen: LoggedPlan | None = None
    unknown: str = ""
    refused: tuple[str, ...] = ()
    source: str = ""
    x: Descriptor | None = None
    w: Descriptor | None = None
    y: Descriptor | None = None
    compute_type: str | None = None
    padding: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    dilation: tuple[int, ...] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlanLog:
        """Reverses dataclasses.asdict, also after JSON has made lists of the tuples."""
        fields = with_tuples(data)
        if fields["chosen"] is not None:
            fields["chosen"] = LoggedPlan(**with_tuples(fields["chosen"]))
        for name in ("x", "w", "y"):
            if fields[name] is not None:
                fields[name] = Descriptor(**with_tuples(fields[name]))
        return cls(**fields)


def parse_log(text: str) -> PlanLog:
    """Reads the part of the frontend's log that a single call of one convolution pass wrote.

    With cudnn.benchmark off PyTorch builds plan after plan until one runs, so the last one built is
    the one it keeps. With benchmark on it builds all of them first, times them, and keeps the
    fastest; the log has these times with six digits.
    """
    built = [_plan(match) for match in _PLAN.finditer(text)]
    timed = [(match["tag"], float(match["milliseconds"])) for match in _TIMED.finditer(text)]
    facts = _descriptors(text)
    if not built:
        return PlanLog(unknown="PyTorch's log has no plan for this call", **facts)
    if not timed:
        chosen = built[-1]
        refused = dict.fromkeys(one.tag for one in built if one.tag != chosen.tag)
        return PlanLog(chosen, refused=tuple(refused), source="heuristic", **facts)
    least = min(milliseconds for _, milliseconds in timed)
    fastest = [tag for tag, milliseconds in timed if milliseconds == least]
    failed = re.findall(r"Plan (\S+) failed with ", text)
    known = PlanLog(refused=tuple(failed), source="benchmark", **facts)
    if len(fastest) > 1:
        return dataclasses.replace(
            known,
            unknown=f"PyTorch timed {len(fastest)} plans, and its log gives the same time "
            f"({least} ms) for {' and '.join(fastest)}",
        )
    return dataclasses.replace(known, chosen=next(one for one in built if one.tag in fastest))


def _plan(match: re.Match[str]) -> LoggedPlan:
    return LoggedPlan(
        tag=match["tag"],
        numerical_notes=_names(match["numerical"], "CUDNN_NUMERICAL_NOTE_"),
        behavior_notes=_names(match["behavior"], "CUDNN_BEHAVIOR_NOTE_"),
        workspace_bytes=int(match["workspace"]),
    )


def _names(listed: str, beginning: str) -> tuple[str, ...]:
    return tuple(name.strip().removeprefix(beginning) for name in listed.split(",") if name.strip())


def _descriptors(text: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for match in _TENSOR.finditer(text):
        # PyTorch numbers the graph's tensors by the codes of these letters.
        facts[chr(int(match["id"]))] = Descriptor(
            sizes=_numbers(match["sizes"]),
            strides=_numbers(match["strides"]),
            alignment=int(match["alignment"]),
            data_type=_type(match["type"]),
        )
    for match in _CONVOLUTION.finditer(text):
        facts["compute_type"] = _type(match["type"])
        for name in ("padding", "stride", "dilation"):
            facts[name] = _numbers(match[name])
    return {name: fact for name, fact in facts.items() if name in PlanLog.__dataclass_fields__}


def _numbers(listed: str) -> tuple[int, ...]:
    return tuple(int(number) for number in listed.split(",") if number.strip())


def _type(written: str) -> str:
    return written.strip('"[]').lower()


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

    def ask(self, problem: ConvProblem, passes: Iterable[str]) -> dict[str, PlanLog]:
        """What PyTorch's log says of each pass of a problem.

        A pass that fails, or that the child does not survive, has no chosen plan, and says why.
        """
        passes = list(passes)
        if self._child is None and (error := self._start_child()):
            return {name: PlanLog(unknown=error) for name in passes}
        question = {"problem": problem.to_dict(), "passes": passes}
        answer, error = self._exchange(json.dumps(question), self._timeout)
        if answer is None:
            return {name: PlanLog(unknown=error) for name in passes}
        logs = {name: PlanLog.from_dict(answer[name]) for name in passes}
        if any("CUDA error" in one.unknown for one in logs.values()):
            self._end_child()  # after such an error every later call of the process fails
        return logs

    def _start_child(self) -> str:
        """Returns an error, empty where it answers."""
        log = Path(self._folder.name, "frontend.log")
        command = [
            sys.executable, "-I", "-c", _BOOT, json.dumps(sys.path),
            str(Path(__file__).parent), str(self._device), str(log),
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
        lines = self._error_file().read_text(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

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
        problem = ConvProblem.from_dict(question["problem"])
        answer(_observe(problem, question["passes"], place, Path(log)))


def _observe(
    problem: ConvProblem, passes: list[str], device: torch.device, log: Path
) -> dict[str, Any]:
    """Runs passes as PyTorch does, and reads what the log gained with each."""
    found = {}
    try:
        tensors = problem.tensors(device, backward=passes != [FPROP])
        with problem.flags.applied():
            for name in passes:
                found[name] = _observe_pass(problem.pytorch_call(name, tensors), device, log)
    except RuntimeError as error:
        found |= {name: _failed(error) for name in passes if name not in found}
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the process that asks needs the memory
    return {name: dataclasses.asdict(one) for name, one in found.items()}


def _observe_pass(call: Callable[[], object], device: torch.device, log: Path) -> PlanLog:
    before = log.stat().st_size if log.exists() else 0
    try:
        in_fresh_thread(call, device)
    except RuntimeError as error:
        return _failed(error)
    if not log.exists():
        return PlanLog(unknown="PyTorch's copy of the cuDNN frontend wrote no log")
    with log.open("rb") as file:
        file.seek(before)
        return parse_log(file.read().decode(errors="replace"))


def _failed(error: RuntimeError) -> PlanLog:
    first_line, *_ = [*str(error).strip().splitlines(), type(error).__name__]
    return PlanLog(unknown=f"PyTorch's own call failed: {first_line}")

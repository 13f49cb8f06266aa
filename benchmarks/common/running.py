"""How benchmarks run: their cases one after the other, and functions in fresh processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import results

if TYPE_CHECKING:
    import argparse

    import torch

RUN_AGAIN = 3  # exit code of a process that asks for another one; run_gpu.sh knows it
_RESULT = "result: "  # begins the line by which a fresh process gives its result
# Options of timings. Results are checked otherwise, if at all; nothing else uses the GPU.
PLAIN: dict[str, Any] = {"check": None, "interference": False}
AS_IS: dict[str, Any] = {"placement": "as-is", "regime": "as-is"}

Device: TypeAlias = "torch.device"  # for scripts, which import torch when they run
Call = Callable[[], object]
Measure = Callable[[], results.Row]


def counted(least: int, most: int | None = None) -> dict[str, Any]:
    """Options of a timing: so many samples, whatever they say."""
    return {"stop": "count", "min_samples": least, "max_samples": most or least}


@dataclasses.dataclass(frozen=True)
class Case:
    """A case that PyTorch's compiler can prepare for, or that is drawn by a seed, or both."""

    measure: Measure
    compile: Call | None = None
    seed: int | None = None

    def __call__(self) -> results.Row:
        drawn = {} if self.seed is None else {"seed": self.seed}
        return {**drawn, **self.measure()}


def run(
    benchmark: str,
    make_cases: Callable[..., Mapping[str, Measure]],
    *,
    on: Literal["cuda", "cpu", "any"] = "cuda",
    **defaults: Any,
) -> None:
    """Runs a benchmark from the command line.

    `make_cases` takes the device, which is of the kind `on`, and as keywords the command line's
    options, of which `defaults` are the names and defaults. Several processes can compile cases at
    once beforehand, which tunes kernels soundly: processes take turns on the GPU.
    """
    parser = results.argument_parser(results.load_script(benchmark).__doc__)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"({default})")
    parser.add_argument(
        "--compile",
        type=results.parse_shard,
        metavar="I/N",
        help="measure nothing, but compile every Nth case, from the Ith, into the caches of "
        "PyTorch's compiler (TORCHINDUCTOR_CACHE_DIR) and of convtime's kernels",
    )
    given = parser.parse_args()
    device = find_device("cpu" if on == "cpu" else given.device)
    if on == "cuda" and device.type != "cuda":
        raise SystemExit("error: this benchmark is of a GPU, and there is none")
    cases = make_cases(device, **{name: getattr(given, name) for name in defaults})
    if given.compile:
        _compile_share(cases, *given.compile)
    else:
        measure_pending(open_file(benchmark, given, device), cases)


def find_device(name: str | None) -> torch.device:
    """The device of that name, or the usual one; a GPU is made the current one."""
    import torch

    from convtime.device.resolve import resolve_device

    device = resolve_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _compile_share(cases: Mapping[str, Measure], first: int, step: int) -> None:
    """Compiles every `step`-th of the cases that are compiled; a failure costs no other case."""
    import torch
    from torch._inductor import config

    config.compile_threads = 1  # of this process, which is one of several
    compiled = [
        (key, case.compile)
        for key, case in cases.items()
        if isinstance(case, Case) and case.compile is not None
    ]
    failed = []
    for key, compile_case in compiled[first - 1 :: step]:
        try:
            compile_case()
        except Exception as error:  # measuring the case will fail, too, and say so
            print(f"{key}: {first_line(error)}", flush=True)
            failed.append(key)
        torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"error: not compiled: {', '.join(failed)}")


def open_file(
    benchmark: str, options: argparse.Namespace, device: torch.device
) -> results.ResultFile:
    """A benchmark's file, of this environment; at first a copy of the rows to resume, if any."""
    from convtime.device.provenance import provenance

    target = options.output / results.file_name(benchmark, options.shard)
    if options.resume and target.exists():
        # No error, so that a command can be repeated as it is until all has run.
        print(f"note: {target} exists already, so {options.resume} is not used")
    elif options.resume:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(options.resume, target)
    return results.ResultFile(benchmark, options, provenance(device))


def measure_pending(file: results.ResultFile, cases: Mapping[str, Measure]) -> None:
    """Adds the rows that a file lacks; a case that fails costs no other one.

    A case that leaves the GPU unusable ends the process. The next one takes it last. No case begins
    later than after the file's `seconds`; the next call continues with it.

    SystemExit with the keys of those that were not measured; or with RUN_AGAIN, where the GPU
    became unusable before cases that it has not become unusable by yet.
    """
    import torch

    failed: list[str] = []
    unsaved: dict[str, results.Row] = {}
    saved, saving = 0.0, 0.0  # when, and how long it took
    deadline = time.perf_counter() + file.seconds
    pending = file.pending(cases)
    unmeasured = [*pending]
    lost_gpu = False
    try:
        while unmeasured and not lost_gpu and (begin := time.perf_counter()) <= deadline:
            key = unmeasured.pop(0)
            try:
                unsaved[key] = pending[key]()
                print(f"{key}: {time.perf_counter() - begin:.1f} s", flush=True)
            except Exception as error:  # whatever it is, it is this case's alone
                if not isinstance(error, (RuntimeError, ValueError, subprocess.TimeoutExpired)):
                    traceback.print_exc()  # of what nobody expects; its first line may say nothing
                print(f"{key}: {first_line(error)}", flush=True)
                failed.append(key)
            if lost_gpu := _lost_gpu():
                print(f"{key} left the GPU unusable for this process", flush=True)
                if key in failed:
                    file.note_lost(key)
                continue
            end = time.perf_counter()
            if unsaved and end - saved > 10 * saving:  # a large file takes long to save
                file.add_all(unsaved)
                unsaved, saved = {}, time.perf_counter()
                saving = saved - end
            torch.cuda.empty_cache()  # of data that no other case can use
    finally:
        if unsaved:
            file.add_all(unsaved)
    if unmeasured and not lost_gpu:
        print(f"the time is up; run again to measure {len(unmeasured)} more")
        unmeasured = []
    print(results.describe_file(file.path) if file.rows else file.path)
    if set(unmeasured) - set(file.lost):
        print("run again to go on with the other cases")
        raise SystemExit(RUN_AGAIN)
    if failed := failed + unmeasured:
        raise SystemExit(f"error: not measured: {', '.join(failed)}")


def _lost_gpu() -> bool:
    """Whether every later call of this process fails, as after an invalid address."""
    import torch

    try:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def first_line(error: BaseException) -> str:
    from convtime.core.errors import first_line

    return first_line(error)


def run_fresh(
    function: Callable[..., results.Row],
    device: Device,
    *arguments: str,
    timeout: float = 120,
) -> results.Row:
    """What a function of a benchmark's file, which takes a device and strings, returns in a fresh
    process; errors as run_program.
    """
    row: results.Row = _result_of(fresh_call(function, device, *arguments), timeout)
    return row


def in_processes(
    function: Callable[..., results.Row],
    device: Device,
    count: int,
    *arguments: str,
    timeout: float = 120,
) -> dict[str, Measure]:
    """Cases of as many fresh processes, which call the same."""
    measure = functools.partial(run_fresh, function, device, *arguments, timeout=timeout)
    return {f"process {number}": measure for number in range(1, count + 1)}


def fresh_call(function: Callable[..., Any], device: Device, *arguments: str) -> list[str | Path]:
    """The arguments of a Python that calls such a function, and prints its result."""
    module = Path(inspect.getfile(function)).relative_to(results.HERE).with_suffix("")
    return _program(
        "from common.running import find_device",
        f"from {'.'.join(module.parts)} import {function.__name__} as function",
        "result = function(find_device(sys.argv[1]), *sys.argv[2:])",
        arguments=[str(device), *arguments],
    )


def run_program(*lines: str, arguments: Sequence[str | Path] = ()) -> Any:
    """The `result` of lines of Python in a fresh process.

    RuntimeError with the last line that it said, where it failed; TimeoutExpired.
    """
    return _result_of(_program(*lines, arguments=arguments), 120)


def _program(*lines: str, arguments: Sequence[str | Path]) -> list[str | Path]:
    # The result is on a line of its own, whatever a library has printed without ending its line.
    show = f"print({chr(10) + _RESULT!r} + json.dumps(result), flush=True)"
    return ["-c", "\n".join(("import json, sys, time", *lines, show)), *arguments]


def _result_of(arguments: Sequence[str | Path], timeout: float) -> Any:
    done = capture([sys.executable, *arguments], timeout)
    for result in printed_results(done.stdout):
        return result
    raise RuntimeError(last_line(done.stderr) or f"a process ended with {done.returncode}")


def capture(
    command: Sequence[str | Path], timeout: float, cwd: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command, which can import the benchmarks' modules, and keeps what it says."""
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": python_path(), **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
    )


def python_path() -> str:
    return os.pathsep.join([str(results.HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[threading.Thread]:
    """Another thread works while the block runs, and until it sees that the event is set."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join()


def seconds_of(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def printed_results(stdout: str) -> list[Any]:
    lines = stdout.splitlines()
    return [json.loads(line.removeprefix(_RESULT)) for line in lines if line.startswith(_RESULT)]


def print_result(row: results.Row) -> None:
    print(f"\n{_RESULT}{json.dumps(row)}", flush=True)

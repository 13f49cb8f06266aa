"""How benchmarks run: on a GPU, one case after the other, and in fresh processes."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import results

if TYPE_CHECKING:
    import torch

RUN_AGAIN = 3  # exit code of a process that asks for another one; run_gpu.sh knows it
RESULT = "probe result: "  # begins the line that a fresh process gives its row by

Device: TypeAlias = "torch.device"  # for scripts, which import torch when they run
Call = Callable[[], object]
Measure = Callable[[], results.Row]


@dataclasses.dataclass(frozen=True)
class Case:
    """A case that PyTorch's compiler can prepare for, or that is drawn by a seed, or both."""

    measure: Measure
    compile: Call | None = None
    seed: int | None = None

    def __call__(self) -> results.Row:
        drawn = {} if self.seed is None else {"seed": self.seed}
        return {**drawn, **self.measure()}


def find_gpu(name: str | None) -> torch.device:
    """The GPU of that name, or the current one, made the current one; SystemExit without one."""
    import torch

    from convtime.device.resolve import resolve_device

    device = resolve_device(name)
    if device.type != "cuda":
        raise SystemExit("error: this benchmark is of a GPU, and there is none")
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def run(
    benchmark: str,
    description: str | None,
    summarise: results.Summarise,
    make_cases: Callable[..., Mapping[str, Measure]],
    *,
    options: Mapping[str, Any] | None = None,
    probes: Mapping[str, Callable[..., results.Row]] | None = None,
    on: Literal["cuda", "cpu", "any"] = "cuda",
) -> None:
    """Runs a benchmark from the command line, or in a fresh process one of its probes.

    `make_cases` takes the device, and as keywords the command line's values of `options`, which
    has their defaults by name. `probes`, which run_probe can ask for, take the device and
    run_probe's arguments; `on` is the kind of device. Several processes can compile cases at once
    beforehand, which tunes kernels soundly: processes take turns on the GPU.
    """
    defaults = options or {}
    parser = results.argument_parser(description)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"({default})")
    parser.add_argument(
        "--probe",
        nargs="+",
        metavar=("compile", "I/N"),
        help="measure nothing, but compile every Nth case, from the Ith, into the caches of "
        "PyTorch's compiler (TORCHINDUCTOR_CACHE_DIR) and of convtime's kernels",
    )
    given = parser.parse_args()
    probe, *arguments = given.probe or [""]
    if probe == "compile":
        try:
            share = results.parse_shard(" ".join(arguments))
        except argparse.ArgumentTypeError as error:
            parser.error(f"--probe compile {error}")

    from convtime.device.resolve import resolve_device

    name = "cpu" if on == "cpu" else given.device
    device = find_gpu(name) if on == "cuda" else resolve_device(name)
    if probe and probe != "compile":
        print_result((probes or {})[probe](device, *arguments))
        return
    cases = make_cases(device, **{name: getattr(given, name) for name in defaults})
    if probe:
        _compile_share(cases, *share)
    else:
        file = open_file(benchmark, summarise, given, device)
        measure_pending(file, cases, seconds=given.seconds)


def _compile_share(cases: Mapping[str, Measure], first: int, step: int) -> None:
    """Compiles every `step`-th of the cases that are compiled; a failure costs no other case."""
    import torch
    from torch._inductor import config

    config.compile_threads = 1  # of this process, which is one of several
    compiled = [(key, case.compile) for key, case in cases.items() if isinstance(case, Case)]
    share = itertools.islice(filter(lambda each: each[1], compiled), first - 1, None, step)
    failed = []
    for key, compile_case in share:
        assert compile_case is not None
        try:
            compile_case()
        except Exception as error:  # measuring the case will fail, too, and say so
            print(f"{key}: {first_line(error)}", flush=True)
            failed.append(key)
        torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"error: not compiled: {', '.join(failed)}")


def open_file(
    benchmark: str, summarise: results.Summarise, options: argparse.Namespace, device: torch.device
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
    return results.ResultFile(benchmark, summarise, options, provenance(device))


def measure_pending(
    file: results.ResultFile, cases: Mapping[str, Measure], *, seconds: float = math.inf
) -> None:
    """Adds the rows that a file lacks; where one cannot be had, the others still are.

    A case that leaves the GPU unusable ends the process. The next one takes it last. No case begins
    later than after `seconds`; the next call continues with it.

    SystemExit with the keys of those that were not measured; or with RUN_AGAIN, where the GPU
    became unusable before cases that it has not become unusable by yet.
    """
    import torch

    failed: list[str] = []
    unsaved: dict[str, results.Row] = {}
    saved, saving = -math.inf, 0.0  # when, and how long it took
    deadline = time.perf_counter() + seconds
    pending = file.pending(cases)
    unmeasured = [*pending]
    try:
        while unmeasured and (begin := time.perf_counter()) <= deadline:
            key = unmeasured.pop(0)
            try:
                unsaved[key] = pending[key]()
                print(f"{key}: {time.perf_counter() - begin:.1f} s", flush=True)
            except Exception as error:  # whatever it is, it is this case's alone
                if not isinstance(error, (RuntimeError, ValueError, subprocess.TimeoutExpired)):
                    traceback.print_exc()  # of what nobody expects; its first line may say nothing
                print(f"{key}: {first_line(error)}", flush=True)
                failed.append(key)
            if _lost_gpu():
                print(f"{key} left the GPU unusable for this process", flush=True)
                if key in failed:
                    file.note_lost(key)
                break
            end = time.perf_counter()
            if unsaved and end - saved > 10 * saving:  # a large file takes long to save
                file.add_all(unsaved)
                unsaved, saved = {}, time.perf_counter()
                saving = saved - end
            torch.cuda.empty_cache()  # of data that no other case can use
        else:
            if unmeasured:
                print(f"the time is up; run again to measure {len(unmeasured)} more")
            unmeasured = []
    finally:
        if unsaved:
            file.add_all(unsaved)
    print(results.describe_file(file.path) if file.rows else file.path)
    if set(unmeasured) - set(file.lost):
        print("run again to go on with the other cases")
        raise SystemExit(RUN_AGAIN)
    if failed := failed + unmeasured:
        raise SystemExit(f"error: not measured: {', '.join(failed)}")


def _lost_gpu() -> bool:
    """Whether every later call of this process fails, as after an invalid address."""
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
    return False


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def run_probe(
    benchmark: str, probe: str, device: torch.device, *arguments: str, timeout: float = 120
) -> results.Row:
    """What a probe of a benchmark finds in a fresh process of its script; errors as run_fresh."""
    script = str(results.scripts()[benchmark])
    command = [script, "--probe", probe, *arguments, "--device", str(device)]
    row: results.Row = run_fresh(command, timeout)
    return row


def in_processes(
    benchmark: str, probe: str, device: torch.device, count: int
) -> dict[str, Measure]:
    measure = functools.partial(run_probe, benchmark, probe, device)
    return {f"process {number}": measure for number in range(1, count + 1)}


def run_program(*lines: str, arguments: Sequence[str | Path] = ()) -> Any:
    """The `result` of lines of Python in a fresh process; errors as run_fresh."""
    told = f"print({chr(10) + RESULT!r} + json.dumps(result))"
    return run_fresh(["-c", "\n".join(("import json, sys, time", *lines, told)), *arguments])


def run_fresh(arguments: Sequence[str | Path], timeout: float = 120) -> Any:
    """What a fresh Python of these arguments gives by `print_result`, or as JSON after RESULT.

    RuntimeError with the last line that it said, where it failed; TimeoutExpired.
    """
    done = capture([sys.executable, *arguments], timeout)
    for result in printed_results(done.stdout):
        return result
    said = last_line(done.stderr) or f"it ended with {done.returncode}"
    script, *options = arguments
    command = " ".join((Path(script).name, *map(str, options)))
    raise RuntimeError(f"{command} failed: {said}")


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


def seconds_of(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def printed_results(stdout: str) -> list[Any]:
    return [
        json.loads(line.removeprefix(RESULT))
        for line in stdout.splitlines()
        if line.startswith(RESULT)
    ]


def print_result(row: results.Row) -> None:
    # On a line of its own, whatever a library has printed without ending its line.
    print(f"\n{RESULT}{json.dumps(row)}", flush=True)

"""How benchmarks run: on a GPU, one case after the other, and in fresh processes."""

from __future__ import annotations

import argparse
import functools
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
from typing import TYPE_CHECKING, Any, TypeAlias

import results

if TYPE_CHECKING:
    import torch

RUN_AGAIN = 3  # exit code of a process that asks for another one; run_gpu.sh knows it
RESULT = "probe result: "  # begins the line that a fresh process gives its row by

Device: TypeAlias = "torch.device"  # for scripts, which import torch when they run
Call = Callable[[], object]
Measure = Callable[[], results.Row]


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


def run_on_gpu(
    benchmark: str,
    description: str | None,
    summarise: results.Summarise,
    make_cases: Callable[[torch.device], Mapping[str, Measure]],
    *,
    probes: Mapping[str, Callable[..., results.Row]] | None = None,
    tell: Callable[[results.Row], str] | None = None,
    anywhere: bool = False,
) -> None:
    """Runs a benchmark from the command line, or in a fresh process one of its probes.

    `probes`, which run_probe can ask for, take the device and run_probe's arguments; `tell` gives
    what is printed of a row, other than how long it took; `anywhere` is whether a CPU will do.
    """
    parser = results.argument_parser(description)
    if probes:
        parser.add_argument("--probe", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()

    from convtime.device.resolve import resolve_device

    device = resolve_device(options.device) if anywhere else find_gpu(options.device)
    if probes and options.probe:
        name, *arguments = options.probe
        print_result(probes[name](device, *arguments))
        return
    file = open_file(benchmark, summarise, options, device)
    measure_pending(file, make_cases(device), tell)


def open_file(
    benchmark: str, summarise: results.Summarise, options: argparse.Namespace, device: torch.device
) -> results.ResultFile:
    """A benchmark's file, of this environment; at first a copy of the rows to resume, if any."""
    from convtime.device.provenance import provenance

    if getattr(options, "resume", None):
        copy_rows(options.resume, options.output / results.file_name(benchmark, options.shard))
    return results.ResultFile(benchmark, summarise, options, provenance(device))


def measure_pending(
    file: results.ResultFile,
    cases: Mapping[str, Measure],
    tell: Callable[[results.Row], str] | None = None,
    *,
    seconds: float = math.inf,
) -> None:
    """Adds the rows that a file lacks; where one cannot be had, the others still are.

    A case that leaves the GPU unusable ends the process. The next one takes it last. No case begins
    later than after `seconds`; the next call continues with it.

    SystemExit with the keys of those that were not measured; or with RUN_AGAIN, where the GPU
    became unusable before cases that it has not become unusable by yet.
    """
    import torch

    failed: list[str] = []
    deadline = time.perf_counter() + seconds
    pending = file.pending(cases)
    for index, (key, measure) in enumerate(pending.items()):
        begin = time.perf_counter()
        if begin > deadline:
            left = len(pending) - index
            print(f"{file.path}\nthe time is up; run again to measure {left} more")
            _refuse(failed)
            return
        try:
            row = measure()
        except Exception as error:  # whatever it is, it is this case's alone
            if not isinstance(error, (RuntimeError, ValueError, subprocess.TimeoutExpired)):
                traceback.print_exc()  # of what nobody expects; its first line may say nothing
            print(f"{key}: {first_line(error)}", flush=True)
            failed.append(key)
            if _lost_gpu():
                file.note_lost(key)
                print(f"{key} left the GPU unusable for this process", flush=True)
                break
        else:
            file.add(key, row)
            told = tell(row) if tell else f"{time.perf_counter() - begin:.1f} s"
            print(f"{key}: {told}", flush=True)
        torch.cuda.empty_cache()  # of data that no other case can use
    print(file.path)
    done = {*failed, *(row["key"] for row in file.rows)}
    unmeasured = [key for key in pending if key not in done]
    if set(unmeasured) - set(file.lost):
        print("run again to go on with the other cases")
        raise SystemExit(RUN_AGAIN)
    _refuse(failed + unmeasured)


def _refuse(failed: Sequence[str]) -> None:
    if failed:
        raise SystemExit(f"error: not measured: {', '.join(failed)}")


def copy_rows(earlier: Path, target: Path) -> None:
    """Copies an earlier run's file to where this one writes, which then continues it."""
    if target.exists():
        # No error, so that a command can be repeated as it is until all has run.
        print(f"note: {target} exists already, so {earlier} is not used")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(earlier, target)


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
    """The kind of an error, and the first line of what it says."""
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
    """Cases: a probe in so many fresh processes."""
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
    """Runs a command, with variables besides this process's, and keeps what it says."""
    return subprocess.run(
        command,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
    )


def python_path() -> str:
    """PYTHONPATH of processes that import modules of the benchmarks."""
    return os.pathsep.join([str(results.HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def seconds_of(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def printed_results(stdout: str) -> list[Any]:
    """What a process has given by `print_result`, or as JSON after RESULT."""
    return [
        json.loads(line.removeprefix(RESULT))
        for line in stdout.splitlines()
        if line.startswith(RESULT)
    ]


def print_result(row: results.Row) -> None:
    # On a line of its own, whatever a library has printed without ending its line.
    print(f"\n{RESULT}{json.dumps(row)}", flush=True)

"""cuda-bench, NVIDIA's own tool: what it says of the operations, in groups."""

from __future__ import annotations

import importlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import results
import torch
from common.running import first_line, run_probe

from accuracy_parts.operations import operations
from accuracy_parts.rows import NVBENCH


def measure_nvbench(ops: Sequence[str], device: torch.device) -> results.Row:
    """cuda-bench takes a process over, and has streams of its own; so it gets one."""
    try:
        return {"ops": run_probe("accuracy", NVBENCH, device, *ops, timeout=180)}
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        reason = first_line(error)
        return {"ops": {op: {"reason": reason} for op in ops}}


def probe_nvbench(device: torch.device, *ops: str) -> results.Row:
    bench: Any = importlib.import_module("cuda.bench")
    reader: Any = importlib.import_module("cuda.bench.results")
    external_stream: Any = torch.cuda.ExternalStream
    makers = operations(device)

    def benchmark(op: str) -> Callable[[Any], None]:
        def run(state: Any) -> None:
            # As in its own example for PyTorch: at its default, it drops all samples of a GPU whose
            # clock has fallen under load.
            state.set_throttle_threshold(0.25)
            stream = external_stream(state.get_stream().addressof(), device=device)
            torch.cuda.empty_cache()  # of the operation before
            call = makers[op]()
            torch.cuda.synchronize()

            def launch(_: Any) -> None:
                with torch.cuda.stream(stream):
                    call()

            state.exec(launch)
            torch.cuda.synchronize()

        return run

    for op in ops:
        bench.register(benchmark(op)).set_name(op)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        options = ["--json", str(path), "--devices", str(device.index or 0)]
        options += ["--cold-warmup-runs", "3", "--timeout", "0.5", "--batch-target-time", "0.1"]
        bench.run_all_benchmarks(["cuda-bench", "--quiet", *options])
        found = reader.BenchmarkResult.from_json(path)
    return {op: _read_nvbench(found[op]) if op in found else {"reason": "no result"} for op in ops}


def _read_nvbench(benchmark: Any) -> results.Row:
    (state,) = benchmark
    if state.is_skipped:
        return {"reason": state.skip_reason or "skipped"}

    def value(*tags: str) -> Any:
        found = (state.summaries[tag].value for tag in tags if tag in state.summaries)
        return next(found, None)

    return {
        "isolated": value("nv/cold/time/gpu/median", "nv/cold/time/gpu/mean"),
        "batch": value("nv/batch/time/gpu/mean"),
        "samples": value("nv/cold/sample_size"),
    }

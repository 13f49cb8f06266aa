"""Benchmarks whose cases are drawn from families by a seed, and compiled beforehand."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import results

from common import running

if TYPE_CHECKING:
    import torch

    from convtime.timing.comparison import Comparison

SEED = 0
_WARM_UP_SECONDS = 0.05
_LEAST_SAMPLES, _MOST_SAMPLES = 20, 100


@dataclasses.dataclass(frozen=True)
class Case:
    """What measures a row, and what fills the cache of PyTorch's compiler for it beforehand.

    The row names the seed that the case is drawn by; None for a case that is not drawn.
    """

    measure: running.Measure
    compile: Callable[[], object] | None = None
    seed: int | None = None

    def row(self) -> results.Row:
        drawn = {} if self.seed is None else {"seed": self.seed}
        return {**drawn, **self.measure()}


def chance(benchmark: str, seed: int, index: int) -> random.Random:
    """A source of chance for one drawn case, whichever cases are drawn before it."""
    return random.Random(f"{benchmark}:{seed}:{index}")  # noqa: S311  # no secret


def log_uniform(source: random.Random, low: float, high: float) -> float:
    """A number between two, as often in each octave as in another."""
    return math.exp(source.uniform(math.log(low), math.log(high)))


def compare_kernels(calls: Mapping[str, running.Call], seconds: float) -> Comparison:
    """Interleaved, after a flush of the L2 cache, and without idling: drift affects all alike.

    `calls` are convtime's and its peers'; it samples for `seconds` at most, beyond its least.
    """
    from convtime import compare

    return compare(
        calls,
        method="kernel",
        cache="cold",
        regime="as-is",
        check=None,  # some peers work on other data, or round after other steps
        interference=False,
        warmup=_WARM_UP_SECONDS,
        stop="budget",
        min_samples=_LEAST_SAMPLES,
        max_samples=_MOST_SAMPLES,
        budget=seconds,
    )


def speedups_of(compared: Comparison) -> dict[str, dict[str, float]]:
    """Each peer's time over convtime's with its interval, as summaries.speedup reads them."""
    ratios = {
        peer: compared.ratio(peer, "convtime")
        for peer in compared.measurements
        if peer != "convtime"
    }
    return {
        peer: {"value": ratio.value, "low": ratio.low, "high": ratio.high}
        for peer, ratio in ratios.items()
    }


def kernels_of(compared: Comparison) -> dict[str, list[str]]:
    from common.calls import shortened

    return {
        name: [shortened(activity.name or activity.kind) for activity in measurement.activities]
        for name, measurement in compared.measurements.items()
    }


def told(compared: Comparison) -> results.Row:
    """What rows have of a comparison of kernels."""
    measured = compared.measurements
    return {
        "seconds": {name: measurement.median for name, measurement in measured.items()},
        "speedups": speedups_of(compared),
        "samples": len(measured["convtime"].seconds),
        "kernels": kernels_of(compared),
    }


def tell(row: results.Row) -> str:
    return ", ".join(f"{name} {1e6 * seconds:.2f} µs" for name, seconds in row["seconds"].items())


def run(
    benchmark: str,
    description: str | None,
    summarise: results.Summarise,
    make_cases: Callable[[torch.device, int, float], Mapping[str, Case]],
    *,
    seconds: float,
    tell: Callable[[results.Row], str] = tell,
) -> None:
    """Runs a benchmark from the command line, or compiles a share of its cases.

    Several processes compile at once. Kernels that the compiler tunes there are tuned soundly:
    processes take turns on the GPU, and it takes the shortest of many times. `make_cases` takes the
    device, the seed and the seconds of a comparison; `seconds` is the default of these.
    """
    parser = results.argument_parser(description)
    parser.add_argument("--seed", type=int, default=SEED, help="that cases are drawn by")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="of a case's samples, at most"
    )
    parser.add_argument(
        "--probe",
        nargs=2,
        metavar=("compile", "I/N"),
        help="measure nothing, but compile every Nth case, from the Ith, into the caches of "
        "PyTorch's compiler (TORCHINDUCTOR_CACHE_DIR) and of convtime's kernels",
    )
    options = parser.parse_args()
    share = _share_of(parser, *options.probe) if options.probe else None

    device = running.find_gpu(options.device)
    cases = make_cases(device, options.seed, options.seconds)
    if share:
        compile_share(cases, *share)
        return
    file = running.open_file(benchmark, summarise, options, device)
    running.measure_pending(file, {key: case.row for key, case in cases.items()}, tell)


def _share_of(parser: argparse.ArgumentParser, name: str, share: str) -> tuple[int, int]:
    """I and N of --probe compile I/N; ends the process with a usage error for anything else."""
    if name != "compile":
        parser.error(f"--probe must be compile I/N, got {name!r}")
    try:
        return results.parse_shard(share)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--probe compile {error}")


def compile_share(cases: Mapping[str, Case], first: int, step: int) -> None:
    """Compiles every `step`-th of the cases that are compiled; a failure costs no other case."""
    import torch
    from torch._inductor import config

    config.compile_threads = 1  # of this process, which is one of several
    compiled = {key: case.compile for key, case in cases.items() if case.compile}
    failed = []
    for key, compile_case in itertools.islice(compiled.items(), first - 1, None, step):
        try:
            compile_case()
        except Exception as error:  # measuring the case will fail, too, and say so
            print(f"{key}: {running.first_line(error)}", flush=True)
            failed.append(key)
        torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"error: not compiled: {', '.join(failed)}")

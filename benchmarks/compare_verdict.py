"""Whether compare's verdicts are right: on an operation against itself, and on one 2 % slower.

An A/A pair is the same operation on the same tensors under two names, so that there is no
difference to be found, not even one of addresses. In a slower pair the second candidate has 2 %
more to do: it spins 2 % longer, or works on 2 % more elements where time is proportional to them.
Whether it is, each group of slower pairs says by a measurement that is not convtime's; a group in
which it is not is shown, and does not count.

The first candidate is the baseline; options are compare's defaults, with a budget of one second.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import accuracy
import results

if TYPE_CHECKING:
    import torch

AA_GROUPS = 3  # of each operation
PAIRS = 10  # of a group
BUDGET = 1.0  # seconds a comparison
TOLERANCE = 0.005  # of a true ratio of 1.02

Call = Callable[[], object]
Measure = Callable[[], results.Row]


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Fractions of the pairs' verdicts; seconds are the mean over all pairs."""
    same = _verdicts(rows, "aa")
    slower = _verdicts([row for row in rows if _is_2pct(row)], "slower")
    seconds = [pair["seconds"] for row in rows for pair in row["pairs"]]
    summary: dict[str, float] = {"aa_pairs": len(same)}
    if same:
        summary["aa_false_alarms"] = sum(one in ("faster", "slower") for one in same) / len(same)
        summary["aa_same"] = same.count("same") / len(same)
    if slower:
        summary["true_2pct_found"] = slower.count("slower") / len(slower)
    if seconds:
        summary["seconds_per_verdict"] = statistics.fmean(seconds)
    return summary


def _is_2pct(row: results.Row) -> bool:
    return bool(abs(row["true_ratio"] - 1.02) <= TOLERANCE)


def _verdicts(rows: list[results.Row], kind: str) -> list[str]:
    return [pair["verdict"] for row in rows if row["kind"] == kind for pair in row["pairs"]]


def table(rows: list[results.Row]) -> str:
    """Markdown, a line an operation and kind."""
    lines = [
        "| operation | pairs | true ratio | measured ratios | same | faster | slower | uncertain "
        "| seconds each |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    groups: dict[tuple[str, str], list[results.Row]] = {}
    for row in rows:
        groups.setdefault((row["op"], row["kind"]), []).append(row)
    return "\n".join([*lines, *(_line(op, group) for (op, _), group in groups.items())])


def _line(op: str, group: list[results.Row]) -> str:
    pairs = [pair for row in group for pair in row["pairs"]]
    found = [pair["verdict"] for pair in pairs]
    ratios = [pair["ratio"] for pair in pairs]
    truth = statistics.median(row["true_ratio"] for row in group)
    counts = [str(found.count(one)) for one in ("same", "faster", "slower", "uncertain")]
    return (
        f"| {op} | {len(pairs)} | {truth:.4f} | {min(ratios):.4f} to {max(ratios):.4f} "
        f"| {' | '.join(counts)} | {statistics.fmean(pair['seconds'] for pair in pairs):.2f} |"
    )


def aa_operations(device: torch.device) -> dict[str, Callable[[], Call]]:
    """Name -> what makes the callable; of 4 to 200 µs on an H200."""
    import torch
    from torch.nn import functional as F

    def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    def conv() -> Call:
        x, weight = (
            rand(*shape, dtype=torch.float16).to(memory_format=torch.channels_last)
            for shape in ((32, 64, 56, 56), (64, 64, 3, 3))
        )
        return functools.partial(F.conv2d, x, weight, padding=1)

    def matmul(n: int) -> Call:
        a, b = (rand(n, n, dtype=torch.bfloat16) for _ in range(2))
        return functools.partial(torch.mm, a, b)

    mi = 1 << 20
    return {
        "relu 2Mi": lambda: functools.partial(torch.relu, rand(2 * mi)),
        "add 32Mi": lambda: functools.partial(torch.add, rand(32 * mi), rand(32 * mi)),
        "softmax 4096x4096 fp32": lambda: functools.partial(torch.softmax, rand(4096, 4096), 1),
        "sum 16Mi": lambda: functools.partial(torch.sum, rand(16 * mi)),
        "matmul 2048 bf16": lambda: matmul(2048),
        "matmul 4096 bf16": lambda: matmul(4096),
        "conv 32x64x56x56 fp16 nhwc": conv,
    }


def measure_aa(op: str, make: Callable[[], Call]) -> results.Row:
    call = make()
    pairs = [compare_pair(call, _again(call)) for _ in range(PAIRS)]
    return {"kind": "aa", "op": op, "true_ratio": 1.0, "pairs": pairs}


def _again(call: Call) -> Call:
    """Another callable that does the same, at the same cost to the host."""
    assert isinstance(call, functools.partial)
    return functools.partial(call.func, *call.args, **call.keywords)


def measure_slower(op: str, make: Callable[[], results.Row]) -> results.Row:
    made = make()
    fast, slow = made.pop("calls")
    pairs = [compare_pair(fast, slow) for _ in range(PAIRS)]
    return {"kind": "slower", "op": op, **made, "pairs": pairs}


def compare_pair(baseline: Call, candidate: Call) -> results.Row:
    from convtime import compare

    begin = time.perf_counter()
    comparison = compare({"baseline": baseline, "candidate": candidate}, budget=BUDGET)
    verdict = comparison.verdict("candidate")
    seconds = time.perf_counter() - begin
    ratio = comparison.ratio("candidate")
    measurement = comparison.measurements["candidate"]
    return {
        "verdict": verdict,
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "seconds": seconds,
        "samples": len(measurement.seconds),
        "stop_reason": measurement.stop_reason,
    }


def make_spins(asked_ns: int) -> results.Row:
    """Spins of one block, known by what they were asked for and by their own stamps."""
    import torch

    spins = [asked_ns, asked_ns + asked_ns // 50]
    calls = [functools.partial(torch.ops.convtime.spin_ns, one) for one in spins]
    return _known_by_stamps(calls, calls, spins)


def make_copies(elements: int, device: torch.device) -> results.Row:
    """Copies bound by the memory's bandwidth, known by their own stamps."""
    import torch

    counts = [elements, elements + elements // 200 * 4]  # in whole vectors of 16 bytes
    sources = [torch.randn(count, device=device) for count in counts]
    calls = [functools.partial(torch.ops.convtime.copy_stamped, one) for one in sources]
    stamped = [functools.partial(_stamps_of_copy, one) for one in sources]
    return _known_by_stamps(calls, stamped, counts)


def _known_by_stamps(
    calls: Sequence[Callable[[], object]],
    stamped: Iterable[Callable[[], torch.Tensor]],
    sizes: Sequence[int],
) -> results.Row:
    stamps = [_stamped_seconds(call) for call in stamped]
    return {
        "calls": calls,
        "true_ratio": stamps[1] / stamps[0],
        "true_seconds": stamps,
        "truth": "its own stamps of the GPU's clock",
        "asked_ratio": sizes[1] / sizes[0],
    }


def _stamps_of_copy(source: torch.Tensor) -> torch.Tensor:
    import torch

    _, stamps = torch.ops.convtime.copy_stamped(source)
    return cast("torch.Tensor", stamps)


def make_relus(rows: int, device: torch.device) -> results.Row:
    """An operation of PyTorch's bound by the memory's bandwidth, known by torch.profiler."""
    import torch

    counts = [rows, rows + rows // 50]
    calls = [functools.partial(torch.relu, torch.randn(n, 1024, device=device)) for n in counts]
    traced: list[list[float]] = [[], []]
    for _ in range(3):
        for call, found in zip(calls, traced, strict=True):
            found.append(statistics.median(accuracy.profile_calls(call, 50, cold=True).sums))
    seconds = [statistics.median(found) for found in traced]
    return {
        "calls": calls,
        "true_ratio": seconds[1] / seconds[0],
        "true_seconds": seconds,
        "truth": "torch.profiler",
        "asked_ratio": counts[1] / counts[0],
    }


def _stamped_seconds(call: Callable[[], torch.Tensor]) -> float:

    return statistics.median(accuracy.median_of_stamps(call, 50, cold=True) for _ in range(3))


def make_cases(device: torch.device) -> Mapping[str, Measure]:
    cases: dict[str, Measure] = {}
    for op, make in aa_operations(device).items():
        for group in range(1, AA_GROUPS + 1):
            cases[f"aa/{op}/{group}"] = functools.partial(measure_aa, op, make)
    mi = 1 << 20
    slower: dict[str, Callable[[], Any]] = {
        "spin 20 µs": functools.partial(make_spins, 20_000),
        "spin 50 µs": functools.partial(make_spins, 50_000),
        "copy 16Mi fp32": functools.partial(make_copies, 16 * mi, device),
        "copy 64Mi fp32": functools.partial(make_copies, 64 * mi, device),
        "relu 65536x1024 fp32": functools.partial(make_relus, 65_536, device),
    }
    for op, make_pair in slower.items():
        cases[f"slower/{op}"] = functools.partial(measure_slower, op, make_pair)
    return cases


def main() -> None:
    options = results.argument_parser(__doc__).parse_args()

    import torch

    from convtime.provenance import provenance

    device = accuracy.find_gpu(options.device)
    file = results.ResultFile("compare_verdict", summarise, options, provenance(device))
    for key, measure in file.pending(make_cases(device)).items():
        row = measure()
        file.add(key, row)
        torch.cuda.empty_cache()
        print(f"{key}: {' '.join(pair['verdict'] for pair in row['pairs'])}", flush=True)
    print(file.path)


if __name__ == "__main__":
    main()

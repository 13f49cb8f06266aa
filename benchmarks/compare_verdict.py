"""Whether compare's verdicts are right: on an operation against itself, and on one 2 % slower.

An A/A pair is the same operation on the same tensors under two names, so that there is no
difference to be found, not even one of addresses. In a slower pair the second candidate has 2 %
more to do: it spins 2 % longer, or works on 2 % more elements where time is proportional to them.
Whether it is, each group of slower pairs says by stamps of the GPU's clock or torch.profiler; a
group in which it is not is shown, and does not count.

The first candidate is the baseline; options are compare's defaults, with a budget of one second.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import results
from common import running, summaries
from common.running import Call, Measure

# Of 4 to 200 µs on an H200
AA_OPERATIONS = (
    "relu 2Mi",
    "add 32Mi",
    "softmax 4096x4096 fp32",
    "sum 16Mi",
    "matmul 2048 bf16",
    "matmul 4096 bf16",
    "conv 32x64x56x56 fp16 nhwc",
)
AA_GROUPS = 3  # of each operation
PAIRS = 10  # of a group
BUDGET = 1.0  # seconds a comparison
TOLERANCE = 0.005  # of a true ratio of 1.02

Pair = tuple[list[Call], list[float]]  # the usual and the slower call, and their true seconds


def make_cases(device: running.Device) -> dict[str, Measure]:
    slower: dict[str, Callable[[], Pair]] = {
        "spin 20 µs": partial(make_spins, 20_000),
        "spin 50 µs": partial(make_spins, 50_000),
        "copy 16Mi fp32": partial(make_copies, 1 << 24, device),
        "copy 64Mi fp32": partial(make_copies, 1 << 26, device),
        "relu 65536x1024 fp32": partial(make_relus, 65_536, device),
    }
    return {
        **{
            f"aa/{op}/{group}": partial(measure_aa, op, device)
            for op in AA_OPERATIONS
            for group in range(1, AA_GROUPS + 1)
        },
        **{f"slower/{op}": partial(measure_slower, op, make) for op, make in slower.items()},
    }


def measure_aa(op: str, device: running.Device) -> results.Row:
    from common.operations import operation

    call = operation(op, device)
    # Another callable that does the same, at the same cost to the host.
    again = partial(call.func, *call.args, **call.keywords)
    return {"kind": "aa", "op": op, "true_ratio": 1.0, "pairs": _compared(call, again)}


def measure_slower(op: str, make: Callable[[], Pair]) -> results.Row:
    (fast, slow), (usual, longer) = make()
    pairs = _compared(fast, slow)
    return {"kind": "slower", "op": op, "true_ratio": longer / usual, "pairs": pairs}


def _compared(baseline: Call, candidate: Call) -> list[results.Row]:
    from convtime import compare

    pairs = []
    for _ in range(PAIRS):
        begin = time.perf_counter()
        comparison = compare({"baseline": baseline, "candidate": candidate}, budget=BUDGET)
        found = summaries.verdict_on(comparison, "candidate")
        pairs.append({**found, "seconds": time.perf_counter() - begin})
    return pairs


def make_spins(asked_ns: int) -> Pair:
    """Spins of one block, known by their own stamps."""
    import torch

    spins = [partial(torch.ops.convtime.spin_ns, ns) for ns in (asked_ns, asked_ns * 51 // 50)]
    return [*spins], [*map(_stamped_seconds, spins)]


def make_copies(elements: int, device: running.Device) -> Pair:
    """Copies bound by the memory's bandwidth, known by their own stamps."""
    import torch

    counts = (elements, elements + elements // 200 * 4)  # in whole vectors of 16 bytes
    copies = [
        partial(torch.ops.convtime.copy_stamped, torch.randn(count, device=device))
        for count in counts
    ]

    def stamps_of(copy: Callable[[], Any]) -> Any:
        return copy()[1]

    return [*copies], [_stamped_seconds(partial(stamps_of, copy)) for copy in copies]


def make_relus(rows: int, device: running.Device) -> Pair:
    """An operation of PyTorch's bound by the memory's bandwidth, known by torch.profiler."""
    from common.operations import operation
    from common.truth import profile_calls

    calls = [operation(f"relu {count}x1024", device) for count in (rows, rows + rows // 50)]
    rounds = [
        [statistics.median(profile_calls(call, 50, cold=True).busy) for call in calls]
        for _ in range(3)
    ]
    return [*calls], [*map(statistics.median, zip(*rounds, strict=True))]


def _stamped_seconds(call: Callable[[], Any]) -> float:
    from common.truth import median_of_stamps

    return statistics.median(median_of_stamps(call, 50, cold=True) for _ in range(3))


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Fractions of the pairs' verdicts; seconds are the mean over all pairs."""
    same = _verdicts(rows, "aa")
    by_2pct = [row for row in rows if abs(row["true_ratio"] - 1.02) <= TOLERANCE]
    seconds = [pair["seconds"] for row in rows for pair in row["pairs"]]
    return summaries.known(
        aa_pairs=len(same),
        aa_false_alarms=summaries.share(map(summaries.is_certain, same)),
        aa_same=summaries.share(verdict == "same" for verdict in same),
        true_2pct_found=summaries.share(each == "slower" for each in _verdicts(by_2pct, "slower")),
        seconds_per_verdict=statistics.fmean(seconds) if seconds else None,
    )


def _verdicts(rows: list[results.Row], kind: str) -> list[str]:
    return [pair["verdict"] for row in rows if row["kind"] == kind for pair in row["pairs"]]


def table(rows: list[results.Row]) -> str:
    groups = defaultdict(list)
    for row in rows:
        groups[row["op"], row["kind"]].append(row)
    lines = []
    for (op, _), group in groups.items():
        pairs = [pair for row in group for pair in row["pairs"]]
        found = [pair["verdict"] for pair in pairs]
        true = f"{statistics.median(row['true_ratio'] for row in group):.4f}"
        ratios = summaries.least_to_most((pair["ratio"] for pair in pairs), ".4f")
        counts = (found.count(kind) for kind in ("same", "faster", "slower", "uncertain"))
        seconds = f"{statistics.fmean(pair['seconds'] for pair in pairs):.2f}"
        lines.append((op, len(pairs), true, ratios, *counts, seconds))
    header = "operation | pairs: | true ratio: | measured ratios: | same: | faster: | slower: "
    return summaries.markdown(f"{header}| uncertain: | seconds each:", lines)


if __name__ == "__main__":
    running.run("compare_verdict", make_cases)

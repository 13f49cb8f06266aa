"""Whether convtime's convolutions are PyTorch's: plan, kernels, bits, time and memory of each pass.

A row with "passes" is a problem. PyTorch's plans come from its own log in a child process, which
waits while this process times. Kernels are CUPTI's records of timed calls; both sides take turns,
with a cold L2 cache. "kernels" are PyTorch's, each [name, grid, block]; "convtime_kernels" is null
where convtime's are the same. "ns" are the samples, in nanoseconds; sample i of both is from the
same round. Rows with "host" are times of the host for one call; the row with "memory" is what many
shapes leave behind.

A problem that PyTorch itself refuses has "error" instead of passes. What was not run is counted in
the table.
"""

from __future__ import annotations

import functools
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import results

RUN_AGAIN = 3  # exit code of a process that asks for another one; run_gpu.sh knows it
PROBLEMS = 660  # of conv_problems.all_problems(), which needs torch
PASSES = ("fprop", "dgrad", "wgrad")
CUDNN_BACKENDS = ("Cudnn", "CudnnTranspose")
RATIO_LIMITS = (0.97, 1.03)
TICK_NS = 32  # of the clock that CUPTI's records are from

_ROUNDS = (6, 25)  # at least, at most
_ROUND_SECONDS = 0.03  # that all rounds of a problem may take on the GPU, above the least
_SURE_ROUNDS = 200  # where a ratio is outside of its limits
_SAVE_SECONDS = 20.0
_HOST_SAMPLES = 300
_MEMORY_SHAPES = 12_000  # more than the 10,000 plans that are kept
_MEMORY_STEP = 2_000


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """From the rows; a name that they do not yield is left out, and so missed."""
    passes = [one for _, _, one in _passes(rows)]
    values: dict[str, float] = {"problems": len(passes)}
    measured = [one for one in passes if "error" not in one]
    if measured:
        with_plans = [one for one in passes if one["backend"] in CUDNN_BACKENDS]
        repeating = [one for one in passes if one.get("pytorch_repeats", True)]
        by_pass = {
            name: [
                ratio(one)
                for _, found, one in _passes(rows)
                if found == name and "error" not in one
            ]
            for name in PASSES
        }
        geomeans = [_geomean(ratios) for ratios in by_pass.values() if ratios]
        values |= {
            "tag_match": _share(map(same_tag, with_plans)),
            "kernels_match": _share(map(same_kernels, passes)),
            "bit_identical_where_pytorch_repeats": _share(map(same_bits, repeating)),
            "time_ratio_geomean_min": min(geomeans),
            "time_ratio_geomean_max": max(geomeans),
            "time_ratio_outliers": sum(map(is_outlier, measured)),
            "peak_memory_ratio_max": max(map(_memory_ratio, measured)),
        }
    added = [_host_added(row) for row in rows if "floor" in row.get("host", {})]
    if added:
        values["host_added_over_f_conv2d"] = max(added)
    modules = [_host_ratio(row) for row in rows if "nn.Conv2d" in row.get("host", {})]
    if modules:
        values["module_host_over_nn_conv2d"] = max(modules)
    return values


def _passes(rows: list[results.Row]) -> Iterator[tuple[str, str, results.Row]]:
    """(problem's name, pass, its entry) of every pass that PyTorch ran."""
    for row in rows:
        for name, one in row.get("passes", {}).items():
            yield row["key"], name, one


def _share(truths: Any) -> float:
    found = list(truths)
    return sum(found) / len(found) if found else 1.0


def _geomean(ratios: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def same_tag(one: results.Row) -> bool:
    """Whether PyTorch's plan is known, and convtime's the same."""
    return one.get("pytorch_tag") is not None and one["pytorch_tag"] == one.get("convtime_tag")


def same_kernels(one: results.Row) -> bool:
    """Whether both launched the same kernels: names, grids, blocks, and how many of each."""
    return "error" not in one and one["convtime_kernels"] is None


def same_bits(one: results.Row) -> bool:
    return bool(one.get("bit_identical", False))


def ratio(one: results.Row) -> float:
    """The median over the rounds of convtime's time over PyTorch's."""
    rounds = zip(one["ns"]["convtime"], one["ns"]["pytorch"], strict=True)
    return float(statistics.median(ours / pytorch for ours, pytorch in rounds))


def is_outlier(one: results.Row) -> bool:
    """Whether the same plan takes another time, by more than the limits and a timer's tick."""
    if not same_kernels(one) or (one["backend"] in CUDNN_BACKENDS and not same_tag(one)):
        return False  # it is a mismatch, which counts as such
    medians = [statistics.median(one["ns"][who]) for who in ("convtime", "pytorch")]
    within = RATIO_LIMITS[0] <= ratio(one) <= RATIO_LIMITS[1]
    return not within and abs(medians[0] - medians[1]) > TICK_NS


def _memory_ratio(one: results.Row) -> float:
    pytorch, convtime = one["peak_bytes"]
    return float(convtime / pytorch)


def _host_added(row: results.Row) -> float:
    """What convtime's call adds to cuDNN's execute, over what F.conv2d adds."""
    floor, ours, theirs = (
        statistics.median(row["host"][name]) for name in ("floor", "convtime", "F.conv2d")
    )
    return float((ours - floor) / (theirs - floor))


def _host_ratio(row: results.Row) -> float:
    pairs = zip(row["host"]["convtime.nn.Conv2d"], row["host"]["nn.Conv2d"], strict=True)
    return float(statistics.median(ours / theirs for ours, theirs in pairs))


def mismatches(rows: list[results.Row]) -> Iterator[str]:
    """Everything that is not the same, a line each."""
    for key, name, one in _passes(rows):
        where = f"{key}, {name}"
        if "error" in one:
            yield f"{where}: {one['error']}"
            continue
        if one["backend"] in CUDNN_BACKENDS and not same_tag(one):
            theirs = one["pytorch_tag"] or one["pytorch_unknown"]
            yield f"{where}: plan {one['convtime_tag']}, PyTorch's: {theirs}"
        if not same_kernels(one):
            counts = len(one["convtime_kernels"]), len(one["kernels"])
            yield f"{where}: other kernels ({counts[0]}, PyTorch's {counts[1]})"
        if one["pytorch_repeats"] and not same_bits(one):
            yield f"{where}: other bits"
        if is_outlier(one):
            yield f"{where}: time ratio {ratio(one):.4f} with the same plan"
        if _memory_ratio(one) > 1:
            yield f"{where}: peak memory {_memory_ratio(one):.3f} times PyTorch's"


def table(rows: list[results.Row], problems: int = PROBLEMS) -> str:
    """Markdown: a line a set of problems and dtype, host times, memory, and every mismatch.

    Args:
        rows: What was measured.
        problems: How many there are, run or not.
    """
    sets: dict[str, list[results.Row]] = {}
    for row in rows:
        if "passes" in row:
            name = f"{row['key'].split()[0]}, {row['problem']['dtype']}"
            sets.setdefault(name, []).append(row)
    lines = [
        "| problems | passes | to cuDNN | same plan | same kernels | same bits | "
        "time convtime / PyTorch: geomean (least, most) |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, those in sorted(sets.items()):
        passes = [one for _, _, one in _passes(those)]
        plans = [one for one in passes if one["backend"] in CUDNN_BACKENDS]
        repeating = [one for one in passes if one.get("pytorch_repeats", True)]
        ratios = [ratio(one) for one in passes if "error" not in one] or [math.nan]
        lines.append(
            f"| {name} | {len(passes)} | {len(plans)} | {sum(map(same_tag, plans))} "
            f"| {sum(map(same_kernels, passes))} | {sum(map(same_bits, repeating))} of "
            f"{len(repeating)} | {_geomean(ratios):.4f} ({min(ratios):.3f}, {max(ratios):.3f}) |"
        )
    lines += ["", *_host_lines(rows), *_memory_lines(rows)]
    refused = [row for row in rows if "error" in row]
    ran = sum("passes" in row for row in rows) + len(refused)
    lines += [f"Problems not run: {problems - ran}; refused by PyTorch itself: {len(refused)}.", ""]
    found = list(mismatches(rows))
    lines += [f"Mismatches: {len(found)}.", *(f"- {line}" for line in found)]
    return "\n".join(lines)


def _host_lines(rows: list[results.Row]) -> Iterator[str]:
    hosts = [row for row in rows if "host" in row]
    if not hosts:
        return
    yield "| host time of a call (µs) | medians |"
    yield "|---|---|"
    for row in hosts:
        medians = (
            f"{name} {statistics.median(samples) / 1e3:.2f}"
            for name, samples in row["host"].items()
        )
        yield f"| {row['key']} | {', '.join(medians)} |"
    yield ""


def _memory_lines(rows: list[results.Row]) -> Iterator[str]:
    for row in rows:
        if "memory" in row:
            steps = ", ".join(
                f"{step['shapes']:,}: {step['host_bytes'] / 2**20:.0f} MiB, {step['plans']:,} plans"
                for step in row["memory"]
            )
            yield f"Host memory after so many shapes: {steps}."
            yield ""


# From here on with torch and a GPU.


def measure_problem(problem: Any, oracle: Any, device: Any) -> results.Row:
    """A problem's row, less its key."""
    import torch

    row = {"problem": problem.to_dict()}
    with problem.flags.applied(), torch.no_grad():
        try:
            tensors = problem.tensors(device)
            calls = {name: problem.pytorch_call(name, tensors) for name in PASSES}
            firsts = {name: call() for name, call in calls.items()}
            torch.cuda.synchronize()  # or a kernel that fails would look like convtime's
        except RuntimeError as error:
            return row | {"error": f"PyTorch: {_first_line(error)}"}
        backends = {name: problem.backend(name, tensors) for name in PASSES}
        to_cudnn = [name for name in PASSES if backends[name] in CUDNN_BACKENDS]
        logs = oracle.ask(problem, to_cudnn) if to_cudnn else {}
        passes: dict[str, results.Row] = {}
        ours: dict[str, Callable[[], Any]] = {}
        for name in PASSES:
            passes[name] = {"backend": backends[name]}
            if name in logs:
                chosen = logs[name].chosen
                passes[name] |= {
                    "pytorch_tag": chosen.tag if chosen else None,
                    "pytorch_unknown": logs[name].unknown,
                }
            try:
                call, facts = _first_calls(problem, name, tensors, calls[name], firsts.pop(name))
                passes[name] |= facts
                ours[name] = call
            except RuntimeError as error:
                passes[name]["error"] = f"convtime: {_first_line(error)}"
        _time(passes, calls, ours)
    return row | {"passes": passes}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _first_calls(
    problem: Any, name: str, tensors: Any, theirs: Callable[[], Any], first: Any
) -> tuple[Callable[[], Any], results.Row]:
    """convtime's call, and what is known of both before they are timed."""
    import convtime
    from convtime.explain import compare_bits, convtime_call

    ours = convtime_call(problem, name, tensors)
    convtime.clear_plan_cache()
    result = ours()
    expected = problem.cudnn_pass(name)
    choices = [one for one in convtime.plan_cache() if one.pass_name == expected]
    identical, repeats = compare_bits(theirs, first, result)
    return ours, {
        "convtime_tag": choices[-1].tag if choices else None,
        "bit_identical": identical,
        "pytorch_repeats": repeats,
        "peak_bytes": [_peak_bytes(theirs), _peak_bytes(ours)],
    }


def _peak_bytes(call: Callable[[], Any]) -> int:
    """Device memory that one call takes at most, its result included."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def _time(
    passes: dict[str, results.Row],
    theirs: dict[str, Callable[[], Any]],
    ours: dict[str, Callable[[], Any]],
) -> None:
    """Adds samples and kernels to the passes that convtime ran, all of them interleaved."""
    if not ours:
        return
    sides = {"pytorch": theirs, "convtime": ours}
    candidates = {(who, name): sides[who][name] for name in ours for who in sides}
    most = _rounds(list(candidates.values()))
    _add_samples(passes, candidates, most)
    for name in ours:
        if is_outlier(passes[name]):
            again = {key: call for key, call in candidates.items() if key[1] == name}
            _add_samples(passes, again, _SURE_ROUNDS)


def _rounds(calls: list[Callable[[], Any]]) -> int:
    """How many rounds of all calls fit into the time that a problem has."""
    import torch

    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    seconds = start.elapsed_time(end) / 1e3
    return max(_ROUNDS[0], min(_ROUNDS[1], int(_ROUND_SECONDS / seconds)))


def _add_samples(
    passes: dict[str, results.Row],
    candidates: dict[tuple[str, str], Callable[[], Any]],
    rounds: int,
) -> None:
    import convtime

    compared = convtime.compare(
        {" ".join(key): call for key, call in candidates.items()},
        method="kernel",
        warmup=1,
        stop="count",
        min_samples=rounds,
        max_samples=rounds,
        budget=60.0,
    )
    found = {key: compared.measurements[" ".join(key)] for key in candidates}
    for name in dict.fromkeys(name for _, name in candidates):
        launches = {
            who: [
                [one.name or one.kind, one.grid, one.block] for one in found[who, name].activities
            ]
            for who in ("pytorch", "convtime")
        }
        # Sorted: groups run on several streams at once, and which kernel is first varies.
        same = sorted(launches["pytorch"]) == sorted(launches["convtime"])
        passes[name] |= {
            "kernels": launches["pytorch"],
            "convtime_kernels": None if same else launches["convtime"],
            "ns": {
                who: [round(1e9 * seconds) for seconds in found[who, name].seconds]
                for who in ("pytorch", "convtime")
            },
        }


HOST_CASES = {
    f"host {label}{' bias' if bias else ''}{' grad' if grad else ''}": (dtype, layout, bias, grad)
    for label, dtype, layout in (("fp16 nhwc", "float16", "nhwc"), ("fp32 nchw", "float32", "nchw"))
    for bias in (False, True)
    for grad in (False, True)
}
MODULE_CASES = {key.replace("host", "host of modules", 1): case for key, case in HOST_CASES.items()}


def measure_host(case: tuple[str, str, bool, bool], device: Any, *, modules: bool) -> results.Row:
    """Samples of the host's time for one call of 1×64×56×56, 3×3, in nanoseconds."""
    import torch

    import convtime
    from convtime._load import _C

    dtype_name, layout, bias, grad = case
    dtype: Any = getattr(torch, dtype_name)
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    theirs = torch.nn.Conv2d(64, 64, 3, padding=1, bias=bias, device=device, dtype=dtype)
    theirs = theirs.to(memory_format=memory_format).requires_grad_(grad)
    x = torch.randn(1, 64, 56, 56, device=device, dtype=dtype)
    x = x.contiguous(memory_format=memory_format).requires_grad_(grad)
    calls: dict[str, Callable[[], object]]
    if modules:
        ours = convtime.nn.Conv2d(64, 64, 3, padding=1, bias=bias, device=device, dtype=dtype)
        ours.weight, ours.bias = theirs.weight, theirs.bias
        calls = {"nn.Conv2d": lambda: theirs(x), "convtime.nn.Conv2d": lambda: ours(x)}
    else:
        w, b = theirs.weight, theirs.bias
        calls = {
            "F.conv2d": lambda: torch.nn.functional.conv2d(x, w, b, padding=1),
            "convtime": lambda: convtime.ops.conv2d(x, w, b, padding=1),
            # cuDNN's own execute of the ready plan, into a tensor that is there.
            "floor": _C.execute_floor(x.detach(), w.detach(), (1, 1), (1, 1), (1, 1), 1),
        }
    compared = convtime.compare(
        calls,
        method="cpu",
        cache="warm",
        warmup=100,
        stop="count",
        min_samples=_HOST_SAMPLES,
        max_samples=_HOST_SAMPLES,
        budget=30.0,
    )
    host = {
        name: [round(1e9 * one) for one in measurement.seconds]
        for name, measurement in compared.measurements.items()
    }
    if modules:
        found = compared.ratio("convtime.nn.Conv2d")
        return {"host": host, "ratio": [found.value, found.low, found.high]}
    return {"host": host}


def measure_memory(
    device: Any, deadline: float, shapes: int = _MEMORY_SHAPES
) -> results.Row | None:
    """What is left behind by many shapes: the process's memory on the host, and plans kept.

    None where time.monotonic() comes to the deadline before all shapes have had their turn.
    """
    import torch

    import convtime

    memory = []
    w = torch.randn(8, 8, 1, 1, device=device, dtype=torch.float16)
    for index in range(shapes):
        if index % _MEMORY_STEP == 0:
            memory.append(_memory_now(index))
        if time.monotonic() > deadline:
            print(f"note: memory: there was time for {index} shapes only, so it is not recorded")
            return None
        x = torch.empty(1, 8, 1 + index // 128, 1 + index % 128, device=device, dtype=w.dtype)
        convtime.ops.conv2d(x, w)
    memory.append(_memory_now(shapes))
    return {"memory": memory}


def _memory_now(shapes: int) -> results.Row:
    import resource

    import torch

    import convtime

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "shapes": shapes,
        "host_bytes": pages * resource.getpagesize(),
        "device_bytes": torch.cuda.memory_allocated(),
        "plans": len(convtime.plan_cache()),
    }


class _Saver:
    """Saves rows every now and then, and when it is left, by an error too."""

    def __init__(self, file: results.ResultFile) -> None:
        self._file = file
        self._rows: dict[str, results.Row] = {}
        self._saved = time.monotonic()

    def __enter__(self) -> _Saver:
        return self

    def __exit__(self, *error: object) -> None:
        self._save()

    def add(self, key: str, row: results.Row) -> None:
        self._rows[key] = row
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        if self._rows:
            self._file.add_all(self._rows)
            self._rows = {}
        self._saved = time.monotonic()


Step = Callable[[], "results.Row | None"]


def _steps(
    problems: Mapping[str, Any], parts: Sequence[str], oracle: Any, device: Any, deadline: float
) -> dict[str, Step]:
    """What makes each row, by the row's key; a step that gives None had not enough time."""
    steps: dict[str, Step] = {}
    if "match" in parts:
        for key, problem in problems.items():
            steps[key] = functools.partial(measure_problem, problem, oracle, device)
    if "host" in parts:
        for key, case in HOST_CASES.items():
            steps[key] = functools.partial(measure_host, case, device, modules=False)
        for key, case in MODULE_CASES.items():
            steps[key] = functools.partial(measure_host, case, device, modules=True)
    if "memory" in parts:
        steps["memory"] = functools.partial(measure_memory, device, deadline)
    return steps


def main() -> None:
    from conv_problems import all_problems

    run("conv_match", __doc__, all_problems, ["match", "host", "memory"])


def run(
    benchmark: str,
    description: str | None,
    all_problems: Callable[[], Mapping[str, Any]],
    parts: Sequence[str],
) -> None:
    """Runs a benchmark of this kind from the command line.

    Args:
        benchmark: Its name in goals.json.
        description: For --help.
        all_problems: Gives its problems by key.
        parts: Of "match", "host" and "memory", what it has.

    Raises:
        SystemExit: With RUN_AGAIN, where a case left the GPU unusable for this process, so that
            others are still to be run.
    """
    import torch

    from convtime.conv_compare import find_device
    from convtime.plan_oracle import PlanOracle
    from convtime.provenance import provenance

    parser = results.argument_parser(description)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="rows of an earlier run")
    parser.add_argument("--seconds", type=float, default=math.inf, help="to stop after (no limit)")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    device = find_device(options.device)
    if device.type != "cuda":
        raise SystemExit(f"error: {benchmark} needs a GPU, since it compares the plans of cuDNN")
    target = options.output / results.file_name(benchmark, options.shard)
    if options.resume and target.exists():
        # No error, so that a command can be repeated as it is until all has run.
        print(f"note: {target} is there already, so {options.resume} is not used")
    elif options.resume:
        options.output.mkdir(parents=True, exist_ok=True)
        shutil.copy(options.resume, target)
    file = results.ResultFile(benchmark, summarise, options, provenance(device))

    with torch.cuda.device(device), PlanOracle(device) as oracle, _Saver(file) as saver:
        problems = all_problems()
        # Shards are of all parts, so that a case belongs to one shard whichever parts are run.
        steps = _steps(problems, parts, oracle, device, deadline)
        chosen = _steps(problems, options.parts, oracle, device, deadline)
        pending = {key: step for key, step in file.pending(steps).items() if key in chosen}
        left, lost = len(pending), False
        for key, step in pending.items():
            if time.monotonic() > deadline:
                break
            row = step()
            if row is None:
                break
            saver.add(key, row)
            left -= 1
            for line in mismatches([{"key": key, **row}]):
                print(line, flush=True)
            lost = _lost_gpu(row)
            if lost:
                print(f"{key} left the GPU unusable for this process; run again to go on")
                break
            torch.cuda.empty_cache()  # blocks cut for one problem's sizes rarely fit the next's
    summary = results.make_summary(file.rows, summarise, results.load_goals()[benchmark])
    print(f"{file.path}: {len(file.rows)} rows, {left} still to be run")
    print(results.describe(summary))
    if lost and left:
        raise SystemExit(RUN_AGAIN)


def _lost_gpu(row: results.Row) -> bool:
    """Whether an error came from CUDA itself, after which every later call fails."""
    errors = [one.get("error", "") for one in (row, *row.get("passes", {}).values())]
    return any("CUDA error" in error for error in errors)


if __name__ == "__main__":
    main()

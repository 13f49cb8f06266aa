"""Show a Measurement: one line, and all facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from convtime.core.load import _C
from convtime.device.clock_trace import THROTTLED_BELOW
from convtime.timing.activity import DeviceActivity
from convtime.timing.forms import UNKNOWN
from convtime.timing.measurement import CONDITIONS, Condition, Measurement
from convtime.timing.plot import distribution_figure, sample_figure
from convtime.timing.roofline import rooflines
from convtime.view.figure import Figure
from convtime.view.page import Block, Details, Facts, Table
from convtime.view.wording import format_estimate, format_seconds, printable

if TYPE_CHECKING:
    from convtime.timing.ranks import RankTimes

_Facts = Iterator[tuple[str, str]]
_T = TypeVar("_T")

_ACTIVITY = ("time", "grid", "block", "kernel, copy or memset")


def line(measured: Measurement) -> str:
    """Return one line with the estimate and its conditions; reservations follow after "but"."""
    reserved = [*reservations(measured)]
    conditions = {"": measured.method.used, "cache ": measured.cache.used}
    if measured.device != "cpu":
        conditions["regime "] = measured.regime.used
    if measured.metric.used in ("span", "sum"):
        conditions["metric "] = measured.metric.used
    known = [f"{what}{used}" for what, used in conditions.items() if used != UNKNOWN]
    text = ", ".join([f"{measured.name}: {estimate(measured)}", *known])
    if reserved:
        text += f"; but {', '.join(reserved)}"
    return printable(text)


def details(measured: Measurement) -> Iterator[Block]:
    """Yield one line per fact, and the device's activities."""
    rows = (
        (format_seconds(activity.median), *launch_cells(activity, activity.short_name))
        for activity in measured.activities
    )
    blocks: list[Block] = [Facts(facts_of(measured)), Table(_ACTIVITY, rows, right=("time",))]
    yield Details(blocks, title=measured.name, summary=line(measured))


def launch_cells(activity: DeviceActivity, name: str) -> tuple[str, str, str]:
    """Return the grid, the block and the name of a kernel; for a copy or memset, its size."""
    if activity.kind != "kernel":
        return "", "", f"{activity.kind} of {activity.bytes:,} bytes"
    grid, block = ("×".join(map(str, sizes)) for sizes in (activity.grid, activity.block))
    return grid, block, name


def grouped(pairs: Iterable[tuple[str, _T]]) -> dict[str, list[_T]]:
    """Group what the same sentence is about by that sentence."""
    groups: dict[str, list[_T]] = {}
    for sentence, each in pairs:
        groups.setdefault(sentence, []).append(each)
    return groups


def estimate(measured: Measurement) -> str:
    """Return the median with its interval, if there is one."""
    if measured.no_gpu_work:
        return "no GPU work"
    return format_estimate(measured.median, *measured.median_interval)


def reservations(measured: Measurement) -> Iterator[str]:
    """Yield reservations: requests that were not met, and limits of the measurement."""
    (low, _), groups, cpu_seconds = measured.median_interval, measured.groups, measured.cpu_seconds
    if math.isinf(low):
        yield f"{len(measured.seconds)} samples are too few for an interval"
    for condition in CONDITIONS:
        state: Condition[str] = getattr(measured, condition)
        by_default = "busy" if condition == "metric" else "auto"
        if condition != "queue" and state.requested not in (by_default, UNKNOWN, state.used):
            yield f"{condition} {state.used} where {state.requested} was asked for"
    # Other methods never queue calls.
    queue = measured.queue
    if measured.method.used in ("kernel", "event") and queue.used != queue.requested:
        yield "queue not held" if queue.used == "none" else f"queue held by {queue.used}"
    if measured.overhead_reason:
        yield "with the method's own cost"
    if measured.steady is False:
        yield "not steady"
    if measured.stop_reason not in ("settled", UNKNOWN) and measured.stop not in (
        "count",
        "budget",
    ):
        yield f"ended by {measured.stop_reason}"
    if _maybe_disturbed(measured):
        yield "maybe disturbed"
    if groups:
        fast, slow = (f"{share:.0%} near {format_seconds(each)}" for share, each in groups)
        yield f"in two groups, {fast} and {slow}"
    if measured.device == "cpu" and measured.provenance.get("tracers"):
        yield f"traced by {measured.provenance['tracers']}"
    if crowding := _crowding(measured):
        yield crowding
    if measured.disturbance:
        cpu_time = "" if cpu_seconds is None else f" (CPU time {format_seconds(cpu_seconds)})"
        yield f"{measured.disturbance}{cpu_time}"
    if measured.other_launches:
        yield "other threads used the GPU"
    if measured.unrecorded:
        yield "not fully seen"
    if measured.inputs:
        yield "inputs to be noted"
    if measured.ranks is not None and measured.ranks.slower:
        yield "a rank is slower than all others"


def _crowding(measured: Measurement) -> str:
    """Return a warning if more threads computed than there are cores; empty otherwise."""
    cores = measured.provenance.get("cores")
    threads = max((reading.threads or 0 for reading in measured.host), default=0)
    if not isinstance(cores, int) or threads <= cores:
        return ""
    return f"{threads:.0f} threads on {cores} {'core' if cores == 1 else 'cores'}"


def _maybe_disturbed(measured: Measurement) -> bool:
    alone = measured.exclusive
    return alone.requested and not alone.used and measured.device != "cpu"


def median(measured: Measurement) -> str:
    """Return the median only."""
    return "no GPU work" if measured.no_gpu_work else format_seconds(measured.median)


def facts_of(measured: Measurement) -> dict[str, str]:
    """Return all facts by name, in display order."""
    discarded = f" ({len(measured.discarded)} discarded)" if measured.discarded else ""
    provenance = measured.provenance
    hardware = provenance.get("gpu") or provenance.get("cpu") or measured.device
    by_criterion = measured.stop_reason == "settled"
    facts = [
        ("median", median(measured)),
        ("95 % interval", _interval(measured)),
        ("range", f"{format_seconds(measured.min)} .. {format_seconds(measured.max)}"),
        ("samples", f"{len(measured.seconds)}{discarded}"),
        *_device_facts(measured),
        *_overhead_facts(measured),
        *_rate_facts(measured),
        *_rank_facts(measured),
        ("method", _used(measured.method)),
        ("queue", _used(measured.queue)),
        ("cache", _used(measured.cache)),
        ("placement", _placement_fact(measured)),
        *_input_facts(measured),
        *_regime_facts(measured),
        ("device", f"{hardware} ({measured.device_reason})"),
        *_process_facts(measured),
        *_host_facts(measured),
        *_clock_facts(measured),
        ("warm-up", _warmup_fact(measured)),
        ("stopped by", measured.stop if by_criterion else measured.stop_reason),
    ]
    return dict(facts)


def _interval(measured: Measurement) -> str:
    low, high = measured.median_interval
    over = f"{measured.interval_count} {measured.interval_over}"
    if math.isinf(low):
        return "none: requires at least six samples"
    return f"{format_seconds(low)} .. {format_seconds(high)} (over {over})"


def _overhead_facts(measured: Measurement) -> _Facts:
    if measured.overhead_reason:
        yield "method's own cost", f"not subtracted: {measured.overhead_reason}"
    elif measured.overhead:
        cost, uncertainty = map(format_seconds, (measured.overhead, measured.overhead_uncertainty))
        yield "method's own cost", f"{cost} ± {uncertainty}, subtracted"


def _used(condition: Condition[str], text: str = "") -> str:
    text = text or condition.used
    if condition.used == condition.requested:
        return f"{text} ({condition.reason})" if condition.reason else text
    return f"{text} (asked for {condition.requested}: {condition.reason})"


def _input_facts(measured: Measurement) -> _Facts:
    if measured.device == "cpu":
        yield "pages", _used(measured.pages)
        if measured.provenance.get("huge_pages"):
            yield "transparent huge pages", str(measured.provenance["huge_pages"])
    if measured.inputs:
        yield "inputs", "; ".join(measured.inputs)


def _placement_fact(measured: Measurement) -> str:
    text = measured.placement.used
    if measured.placements > 1:
        text += f", {measured.placements} places"
    if measured.placement_variance_share is not None:
        text += f" with {measured.placement_variance_share:.0%} of the variance between them"
    return _used(measured.placement, text)


def _device_facts(measured: Measurement) -> _Facts:
    known = {
        "busy": (measured.busy_seconds, "at least one kernel, copy or memset ran"),
        "span": (measured.span_seconds, "first start to last end"),
        "sum": (measured.sum_seconds, "sum of durations"),
    }
    facts = {}
    for metric, (seconds, meaning) in known.items():
        if seconds:  # older files lack some metrics
            median = _C.summarize(seconds, measured.clock_tick)["median"]
            facts[metric] = f"{format_seconds(median)} ({meaning})"
    if not facts:
        return
    if measured.busy_seconds and measured.busy_seconds != measured.sum_seconds:
        facts["sum"] += ": some are concurrent"
    if measured.metric != "elapsed":
        yield "metric", _used(measured.metric)
    yield from facts.items()
    yield "activities", f"{len(measured.activities)}"
    if measured.unrecorded:
        missing = f"work issued by {', '.join(measured.unrecorded)}, which CUPTI does not record"
        yield "not seen", f"{missing}; use method='event' or 'sync' to include it"
    if measured.other_launches:
        work = f"{measured.other_launches} pieces of GPU work"
        yield "other threads", f"issued {work} during the run (not timed)"
    if measured.faulty_batches:
        yield "repeated", f"{measured.faulty_batches} batches, last reason: {measured.fault}"


def _rate_facts(measured: Measurement) -> _Facts:
    ceilings = measured.ceilings
    flops, moved = measured.flops_per_second, measured.bytes_per_second
    if ceilings is not None and flops is not None:
        share = f"{flops / ceilings.flops_per_second:.1%} of this device's"
        yield "compute", f"{flops / 1e12:.4g} TFLOP/s ({share} {ceilings.matmul_dtype} matmul)"
    if ceilings is not None and moved is not None:
        share = f"{moved / ceilings.bytes_per_second:.1%} of this device's"
        yield "memory", f"{moved / 1e9:.4g} GB/s ({share} copy)"
    if measured.ceilings_reason:
        yield "ceilings", f"unknown: {measured.ceilings_reason}"


def _rank_facts(measured: Measurement) -> _Facts:
    ranks = measured.ranks
    if ranks is None:
        return
    yield "ranks", f"{len(ranks.ranks)} ({ranks.backend}); each sample is the longest of all ranks"
    if ranks.collectives:
        kinds = (f"{each.kind} of {each.nbytes:,} bytes" for each in ranks.collectives)
        yield "communication", ", ".join(kinds)
    bound = f"clocks known within {format_seconds(ranks.clock_uncertainty)}: {ranks.clock_reason}"
    if ranks.skew is not None:
        yield "arrival skew", f"{format_seconds(ranks.skew)} ({bound})"
    if ranks.transfer is None:
        yield "transfer", f"unknown: {ranks.arrivals_reason}"
    else:
        interval = ranks.transfer_interval or (-math.inf, math.inf)
        transfer = format_estimate(ranks.transfer, *interval)
        yield "transfer", f"{transfer} from the last arrival to the last end"
    if ranks.algorithm_bandwidth is not None and ranks.bus_bandwidth is not None:
        rates = (ranks.algorithm_bandwidth, ranks.bus_bandwidth)
        algorithm, bus = (f"{rate / 1e9:.4g} GB/s" for rate in rates)
        yield "bandwidth", f"algorithm {algorithm}, bus {bus}"
    else:
        yield "bandwidth", f"unknown: {ranks.bandwidth_reason}"
    for each in ranks.ranks:
        yield f"rank {each.rank}", _rank_fact(each)
    for number, sentence in enumerate(ranks.slower):
        yield f"slower{number or ''}", sentence


def _rank_fact(rank: RankTimes) -> str:
    parts = [format_seconds(rank.median)]
    if rank.waiting is not None:
        parts.append(f"of it waiting {format_seconds(rank.waiting)}")
    if rank.communication is not None:
        parts.append(f"communication {format_seconds(rank.communication.exposed)} exposed")
        parts.append(f"{format_seconds(rank.communication.hidden)} hidden")
    parts.append(f"{rank.device} ({rank.device_name}) of {rank.process}")
    if rank.global_rank != rank.rank:
        parts.append(f"global rank {rank.global_rank}")
    if rank.state is not None:
        parts.append(str(rank.state).partition(": ")[2])
    return ", ".join(parts)


def _regime_facts(measured: Measurement) -> _Facts:
    unasked = measured.regime.requested == "auto" and measured.device == "cpu"
    if not unasked and measured.regime.requested != "as-is":
        idled = measured.idle_seconds
        tail = f"; idled for {format_seconds(idled)}" if idled else ""
        yield "regime", _used(measured.regime) + tail


def _process_facts(measured: Measurement) -> _Facts:
    known = measured.provenance
    if known.get("proof"):
        yield "promises", str(known["proof"])
    if measured.waited_seconds:
        yield "waited", f"{format_seconds(measured.waited_seconds)} for other timings"
    if _maybe_disturbed(measured):
        yield "maybe disturbed", measured.exclusive.reason
    if measured.device == "cpu":
        threads, cores, governor = (
            known.get(name) or "unknown" for name in ("threads", "cores", "governor")
        )
        load = known.get("load_average")
        average = f"{load:.2f}" if isinstance(load, float) else "unknown"
        machine = f"{threads} threads, {cores} cores"
        yield "CPU", f"{machine}, load average {average}, governor {governor}"
    if known.get("tracers"):
        yield "traced by", str(known["tracers"])
    if known.get("gc") == "disabled":
        yield "garbage collector", "disabled"
    if measured.pin is not None:
        yield "pinned to", f"CPU {measured.pin}"
    if measured.repeats > 1:
        yield "calls per sample", f"{measured.repeats}, since one call is too short for the clock"


def _host_facts(measured: Measurement) -> _Facts:
    """Yield the operating system's effects on the calls, on average."""
    if measured.host and measured.cpu_seconds is not None:
        calls = measured.repeats * sum(reading.samples for reading in measured.host)
        threads = max(reading.threads or 0 for reading in measured.host)
        of_threads = f" of {threads:.0f} threads" if threads > 1 else ""
        yield "CPU time", format_seconds(measured.cpu_seconds) + of_threads
        if measured.used_cores:
            cores = "cores " if len(measured.used_cores) > 1 else "core "
            cores += ", ".join(map(str, measured.used_cores))
            if measured.free_cores is not None:
                cores += f"; {measured.free_cores:.1f} cores were free"
            yield "ran on", cores
        others = [reading.others_seconds for reading in measured.host]
        if None not in others:
            elapsed = sum(reading.seconds for reading in measured.host)
            used = sum(other or 0.0 for other in others) / elapsed
            yield "other processes", f"used {used:.1f} cores"
        if measured.waiting_share is not None:
            yield "waited for a core", f"{measured.waiting_share:.1%} of the time"
        voluntary, involuntary, faults = (
            sum(getattr(reading, quantity) for reading in measured.host) / calls
            for quantity in ("voluntary_switches", "involuntary_switches", "minor_faults")
        )
        yield "page faults", f"{faults:.4g} per call"
        switches = f"{voluntary:.2g} voluntary, {involuntary:.2g} forced, per call"
        yield "context switches", switches
        yield from _counter_facts(measured)
    if measured.disturbance:
        yield "disturbed", measured.disturbance
    if measured.host_reason:
        yield "not seen", measured.host_reason


def _counter_facts(measured: Measurement) -> _Facts:
    if measured.instructions is None:
        return
    text = f"{measured.instructions:.4g} per call".replace("e+0", "e").replace("e+", "e")
    known = [(each.instructions or 0.0, each.cycles) for each in measured.host if each.cycles]
    if known:
        instructions, cycles = map(math.fsum, zip(*known, strict=True))
        text += f", {instructions / cycles:.1f} per cycle"
    yield "instructions", text


def _clock_facts(measured: Measurement) -> _Facts:
    known_mhz = [clock_hz / 1e6 for clock_hz in measured.sm_clocks_hz if clock_hz is not None]
    if known_mhz and measured.max_sm_clock_hz is not None:
        highest = measured.max_sm_clock_hz / 1e6
        text = f"{min(known_mhz):.0f} .. {max(known_mhz):.0f} MHz of {highest:.0f}"
        if any(measured.throttled):
            text += f"; {sum(measured.throttled)} samples below {THROTTLED_BELOW:.0%} of that"
        yield "SM clock", text + (" (locked)" if measured.clocks == "lock" else "")
    for name, unit in (("power", "W"), ("temperature", "°C")):
        readings = [getattr(reading, name) for reading in measured.conditions]
        known = [value for value in readings if value is not None]
        if known:
            yield name, f"{min(known):.0f} .. {max(known):.0f} {unit}"
    reasons = {why for reading in measured.conditions for why in reading.throttle_reasons or ()}
    if reasons:
        yield "throttled by", ", ".join(sorted(reasons))
    if measured.conditions_reason:
        yield "conditions", f"unknown: {measured.conditions_reason}"


def _warmup_fact(measured: Measurement) -> str:
    if measured.warmup_seconds is None or measured.first_call_seconds is None:
        return "unknown"
    end = {None: "", True: ", steady", False: ", not steady"}[measured.steady]
    compiled = measured.first_call_compile_seconds
    compilation = f", {format_seconds(compiled)} of it to compile kernels" if compiled else ""
    return (
        f"{measured.warmup_calls} calls in {format_seconds(measured.warmup_seconds)}{end}; "
        f"the first took {format_seconds(measured.first_call_seconds)}{compilation}"
    )


def figures(measured: Measurement) -> Iterator[Figure]:
    """Yield the figures, the most informative first."""
    if any(map(math.isfinite, measured.seconds)):
        yield distribution_figure(measured)
        yield sample_figure(measured)
    yield from rooflines(measured.name, [(measured.name, measured.name, measured)])

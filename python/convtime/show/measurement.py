"""Measurements and comparisons as text and HTML: a sheet of facts each."""

from __future__ import annotations

import html as escaping

from convtime.core.load import _C
from convtime.results.comparison import Comparison
from convtime.results.measurement import THROTTLED_BELOW, Measurement
from convtime.results.units import format_seconds


def sheet(measured: Measurement) -> str:
    """A measurement as text, a line for each fact."""
    facts = "\n".join(f"  {name}: {value}" for name, value in _facts(measured).items())
    return f"<convtime.Measurement {measured.name}\n{facts}>"


def html_sheet(measured: Measurement) -> str:
    """A measurement as an HTML table, with everything escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escaping.escape(name)}</th>"
        f"<td style='text-align:left'>{escaping.escape(value)}</td></tr>"
        for name, value in _facts(measured).items()
    )
    return f"<table><caption>{escaping.escape(measured.name)}</caption>{rows}</table>"


def comparison_sheet(compared: Comparison) -> str:
    """A comparison as text: medians, and each candidate's ratio to the first with its verdict."""
    medians = {
        name: format_seconds(measured.median) for name, measured in compared.measurements.items()
    }
    baseline, *others = medians
    lines = [f"  {baseline}: {medians[baseline]}, the baseline"]
    lines += [
        f"  {name}: {medians[name]}, ratio {compared.ratio(name)}, {compared.verdict(name)} "
        f"(within {compared.margin:.2%})"
        for name in others
    ]
    return "\n".join(["<convtime.Comparison", *lines]) + ">"


def _facts(measured: Measurement) -> dict[str, str]:
    low, high = measured.median_interval
    return {
        "median": format_seconds(measured.median),
        "95 % interval": f"{format_seconds(low)} .. {format_seconds(high)}",
        "range": f"{format_seconds(measured.min)} .. {format_seconds(measured.max)}",
        "samples": f"{len(measured.seconds)}"
        + (f" ({len(measured.discarded)} discarded)" if measured.discarded else ""),
        **_device_facts(measured),
        **({"method's own cost": format_seconds(measured.overhead)} if measured.overhead else {}),
        **_rate_facts(measured),
        "method": _used(measured, "method"),
        "queue": _used(measured, "queue"),
        "cache": _used(measured, "cache"),
        **_regime_facts(measured),
        "device": f"{_hardware(measured)} ({measured.device_reason})",
        **_turn_facts(measured),
        **_host_facts(measured),
        **_clock_facts(measured),
        **_condition_facts(measured),
        "warm-up": _warmup_fact(measured),
        "stopped by": measured.stop if measured.stop_reason == "settled" else measured.stop_reason,
    }


def _used(measured: Measurement, condition: str) -> str:
    used, requested, reason = (
        getattr(measured, condition + ending) for ending in ("", "_requested", "_reason")
    )
    return used if used == requested else f"{used} (asked for {requested}: {reason})"


def _hardware(measured: Measurement) -> str:
    known = measured.provenance
    return known.get("gpu") or known.get("cpu") or measured.device


def _device_facts(measured: Measurement) -> dict[str, str]:
    if not measured.spans:
        return {}
    span = _C.summarize(measured.spans)["median"]
    return {
        "span": f"{format_seconds(span)} (first start to last end)",
        "activities": f"{len(measured.activities)}",
    }


def _rate_facts(measured: Measurement) -> dict[str, str]:
    facts = {}
    ceilings, flops, moved = (
        measured.ceilings,
        measured.flops_per_second,
        measured.bytes_per_second,
    )
    if ceilings is not None and flops is not None:
        facts["compute"] = (
            f"{flops / 1e12:.4g} TFLOP/s ({flops / ceilings.flops_per_second:.1%} of this "
            f"device's {ceilings.matmul_dtype} matmul)"
        )
    if ceilings is not None and moved is not None:
        facts["memory"] = (
            f"{moved / 1e9:.4g} GB/s ({moved / ceilings.bytes_per_second:.1%} of this device's "
            "copy)"
        )
    if measured.ceilings_reason:
        facts["ceilings"] = f"not known: {measured.ceilings_reason}"
    return facts


def _regime_facts(measured: Measurement) -> dict[str, str]:
    if measured.regime_requested == "as-is":
        return {}
    idled = measured.idle_seconds
    tail = f"; idled for {format_seconds(idled)}" if idled else ""
    return {"regime": _used(measured, "regime") + tail}


def _turn_facts(measured: Measurement) -> dict[str, str]:
    facts = {}
    if measured.waited_seconds:
        facts["waited"] = f"{format_seconds(measured.waited_seconds)} for others to time"
    if measured.exclusive_requested and not measured.exclusive and measured.device != "cpu":
        facts["maybe disturbed"] = measured.exclusive_reason
    return facts


def _host_facts(measured: Measurement) -> dict[str, str]:
    facts = {}
    threads, load, governor = map(measured.provenance.get, ("threads", "load_average", "governor"))
    if measured.device == "cpu":
        told = "not known" if load is None else f"{load:.2f}"
        facts["CPU"] = (
            f"{threads or 'unknown'} threads, load average {told}, governor "
            f"{governor or 'not known'}"
        )
    if measured.pin is not None:
        facts["pinned to"] = f"CPU {measured.pin}"
    return facts


def _clock_facts(measured: Measurement) -> dict[str, str]:
    known_mhz = [clock_hz / 1e6 for clock_hz in measured.sm_clocks_hz if clock_hz is not None]
    if not known_mhz or measured.max_sm_clock_hz is None:
        return {}
    text = (
        f"{min(known_mhz):.0f} .. {max(known_mhz):.0f} MHz of {measured.max_sm_clock_hz / 1e6:.0f}"
    )
    if any(measured.throttled):
        text += f"; {sum(measured.throttled)} samples below {THROTTLED_BELOW:.0%} of it"
    return {"SM clock": text + (" (locked)" if measured.clocks == "lock" else "")}


def _condition_facts(measured: Measurement) -> dict[str, str]:
    facts = {}
    for name, unit in (("power", "W"), ("temperature", "°C")):
        readings = [getattr(reading, name) for reading in measured.conditions]
        known = [value for value in readings if value is not None]
        if known:
            facts[name] = f"{min(known):.0f} .. {max(known):.0f} {unit}"
    reasons = {why for reading in measured.conditions for why in reading.throttle_reasons or ()}
    if reasons:
        facts["throttled by"] = ", ".join(sorted(reasons))
    if measured.conditions_reason:
        facts["conditions"] = f"not known: {measured.conditions_reason}"
    return facts


def _warmup_fact(measured: Measurement) -> str:
    end = {None: "", True: ", steady", False: ", not steady"}[measured.steady]
    return (
        f"{measured.warmup_calls} calls in {format_seconds(measured.warmup_seconds)}{end}; "
        f"the first took {format_seconds(measured.first_call_seconds)}"
    )

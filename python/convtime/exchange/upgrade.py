"""Convert JSON that earlier versions wrote to today's.

Until schema 5 of a Measurement, documents named no type, results in others had no schema, and a
condition was three fields of a measurement: the used value, ``…_requested`` and ``…_reason``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convtime.core import codec

_CONDITIONS = ("method", "metric", "queue", "cache", "placement", "pages", "regime", "exclusive")
_RENAMED: dict[str, str] = {
    "neighbours": "neighbors",
    "serialised": "serialized",
    "utilisation": "utilization",
}
#: Keys by which an untyped document is recognized, in this order.
_KINDS = {
    "Measurement": ("seconds", "cache_requested"),
    "Comparison": ("measurements", "baseline"),
    "Measurements": ("measurements",),
    "Sweep": ("plan", "points"),
    "Counters": ("totals", "kernels"),
    "ClockTrace": ("started", "readings"),
    "ModuleTimes": ("passes", "step_seconds"),
    "Recording": ("entries", "launches"),
    "Explanation": ("call", "passes"),
    "Diagnosis": ("causes", "evidence"),
    "Changes": ("changes", "false_discoveries"),
    "Examination": ("known_durations", "operations"),
    "Convolutions": ("rows", "provenance"),
}


def upgraded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document in today's form; one with a type, or of another tool, is unchanged."""
    if "type" in document or "schema" not in document:
        return document
    kind = next(
        (kind for kind, keys in _KINDS.items() if all(key in document for key in keys)), None
    )
    if kind is None:
        return document
    fields = {name: value for name, value in document.items() if name != "schema"}
    return codec.document(kind, renewed(fields))


def renewed(value: Any) -> Any:
    """Return JSON in which every measurement and every evidence has today's fields."""
    if isinstance(value, list | tuple):
        return [renewed(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    fields = {str(_RENAMED.get(name, name)): renewed(each) for name, each in value.items()}
    return _measurement(fields) if "seconds" in fields and "cache_requested" in fields else fields


def _measurement(fields: dict[str, Any]) -> dict[str, Any]:
    if "spans" in fields:  # until schema 4, times of kernels were the sums of their durations
        by_records = fields.get("method") == "kernel"
        fields["span_seconds"] = fields.pop("spans")
        fields["busy_seconds"] = fields.pop("unions", ())
        fields["sum_seconds"] = fields["seconds"] if by_records else ()
        fields["metric"] = "sum" if by_records else "elapsed"
        fields["metric_requested"] = "sum" if by_records else "busy"
    for name in _CONDITIONS:
        used = fields.get(name, {"metric": "elapsed", "exclusive": False}.get(name, "as-is"))
        requested = fields.pop(f"{name}_requested", "busy" if name == "metric" else used)
        reason = fields.pop(f"{name}_reason", "")
        fields[name] = {"used": used, "requested": requested, "reason": reason}
    return fields

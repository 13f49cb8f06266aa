"""Options of timings and comparisons that several benchmarks share."""

from typing import Any

# Results are checked otherwise, if at all; nothing else uses the GPU.
PLAIN: dict[str, Any] = {"check": None, "interference": False}
AS_IS: dict[str, Any] = {"placement": "as-is", "regime": "as-is"}


def counted(least: int, most: int | None = None) -> dict[str, Any]:
    """So many samples, whatever they say."""
    return {"stop": "count", "min_samples": least, "max_samples": most or least}

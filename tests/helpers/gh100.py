"""The metrics of a GH100, which is what an H200 is, as CUPTI 13.0 listed them without any GPU."""

import gzip
import re
from typing import Any

from tests.helpers import TESTS

_FILE = TESTS / "data" / "gh100_metrics.tsv.gz"
_SUFFIXES = {
    ".sum": r"\.(sum|avg|min|max)(\.per_second|\.per_cycle_(active|elapsed)"
    r"|\.pct_of_peak_sustained_(active|elapsed))?",
    ".ratio": r"\.(ratio|pct|max_rate)",
    ".avg.pct_of_peak_sustained_elapsed": r"\.(sum|avg|min|max)"
    r"\.pct_of_peak_sustained_(active|elapsed)",
}


class _Gh100:
    """What names are resolved on."""

    name = "cuda:0"

    def __init__(self, *lacking):
        self._units = {}
        for line in gzip.decompress(_FILE.read_bytes()).decode().splitlines():
            metric, unit, hardware = line.split("\t")
            if metric not in lacking:
                self._units[metric.partition(".")[0]] = (metric, unit, hardware)

    def metrics(self):
        return [metric for metric, _, _ in self._units.values()]

    def describe(self, names):
        return [self._describe(name) for name in names]

    def _describe(self, name):
        base, dot, suffix = name.partition(".")
        if base not in self._units:
            return None
        usual, unit, hardware = self._units[base]
        usual = usual.removeprefix(base)
        if dot and not re.fullmatch(_SUFFIXES[usual], dot + suffix):
            return None
        if suffix.endswith("per_second"):
            unit = f"{unit}/second"
        if "pct" in suffix:
            unit = "percent"
        return f"CUPTI's words of {base}", unit, hardware


Gh100: Any = _Gh100  # for type checkers, it stands in for a GpuChip

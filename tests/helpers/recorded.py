"""What was recorded on a GPU, for tests that have none."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping
from typing import Any

from convtime.layers.compare import LayerResult
from convtime.timing.activity import DeviceActivity
from tests.helpers import RESULTS, TESTS


@functools.cache
def layers() -> Mapping[str, LayerResult]:
    """ResNet-50's convolutions with kernels and times on an H200, by "dtype layout name".

    Of one run that stays, since tests name its kernels and times; the benchmark's file changes.
    """
    document = json.loads(
        gzip.decompress((TESTS / "data" / "compare_resnet50.json.gz").read_bytes())
    )
    provenance = document["provenance"]
    return {row["key"]: LayerResult.from_dict(row, provenance) for row in document["rows"]}


@functools.cache
def kernels() -> tuple[DeviceActivity, ...]:
    """Every kernel, copy and memset that PyTorch's convolutions ran there, of each name one.

    Names of more than 120 letters were cut when they were recorded.
    """
    names = set()
    for benchmark in ("conv_match", "conv_match_nd"):
        for row in _read(benchmark)["rows"]:
            for found in (row.get("passes") or {}).values():
                names |= {name for name, *_ in found.get("kernels") or ()}
    return tuple(map(activity, sorted(names)))


def activity(name: str, seconds: float = 1e-6) -> DeviceActivity:
    """A kernel of a name, or a copy or memset."""
    is_kernel = name not in ("memcpy", "memset")
    sizes = (1, 1, 1) if is_kernel else (0, 0, 0)
    return DeviceActivity(
        "kernel" if is_kernel else name,
        name if is_kernel else "",
        sizes,
        sizes,
        0,
        0,
        0,
        (seconds,),
    )


def _read(benchmark: str) -> Any:
    return json.loads((RESULTS / f"{benchmark}.json").read_text(encoding="utf-8"))

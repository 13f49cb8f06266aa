"""Why counters cannot be read, in a sentence; and what a chip is asked for."""

import contextlib
import ctypes
from typing import Any

import pytest
import torch

from convtime.core.load import _C
from convtime.counting import chip
from convtime.counting.chip import REFUSALS, GpuChip, explain
from convtime.counting.results import CountersUnavailable


def test_a_refusal_says_what_to_set_in_one_sentence():
    for result in REFUSALS:
        said = explain(result, "CUPTI call failed", "cuda:0")
        assert said.startswith(f"hardware counters of cuda:0 cannot be read ({result}): ")
        assert "\n" not in said
        assert not said.endswith(".")
    said = explain("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "", "cuda:0")
    for needed in ("NVreg_RestrictProfilingToAdminUsers=0", "CAP_SYS_ADMIN", "--cap-add=SYS_ADMIN"):
        assert needed in said
    for result, text in {
        "kernels uncounted": "CUPTI counted 1 of the 2 kernels",
        "no CUPTI": "there is no CUDA driver",
    }.items():  # the core's own words
        said = f"hardware counters of cuda:0 cannot be read: {text}"
        assert explain(result, text, "cuda:0") == said
    assert explain("CUPTI_ERROR_INVALID_PARAMETER", "", "cuda:0") is None, "no state of the machine"


def test_a_chip_is_asked_for_each_name_once(monkeypatch):
    asked = []

    def describe(names):
        asked.extend(names)
        return [None if name == "unknown" else (f"words of {name}", "byte", "") for name in names]

    def refuse():
        raise _C.CuptiError("CUPTI_ERROR_HARDWARE_BUSY", "")

    monkeypatch.setattr(chip, "gpu_uuid", lambda device: f"uuid of {device} in this test")
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(_C, "CuptiError", type("CuptiError", (RuntimeError,), {}), raising=False)
    monkeypatch.setattr(_C, "describe_metrics", describe, raising=False)
    monkeypatch.setattr(_C, "metric_names", refuse, raising=False)
    gpu, other = (GpuChip(torch.device("cuda", index)) for index in (0, 1))
    assert gpu.name == "cuda:0"
    assert [each and each[0] for each in gpu.describe(["b", "unknown"])] == ["words of b", None]
    assert [each and each[0] for each in gpu.describe(["a", "b"])] == ["words of a", "words of b"]
    assert asked == ["b", "unknown", "a"]
    other.describe(["b"])
    assert asked[3:] == ["b"], "another GPU may count something else"
    for _ in range(2):
        with pytest.raises(CountersUnavailable, match="another profiler uses them"):
            gpu.metrics()
    monkeypatch.setattr(_C, "metric_names", lambda: ["a"])
    assert gpu.metrics() == ("a",)


@pytest.mark.skipif(not hasattr(_C, "count_kernels"), reason="for builds with CUDA")
def test_without_a_driver_the_core_says_so():
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a CUDA driver")
    call: dict[str, Any] = {
        "call": (print, (), {}, None),
        "replays_kernels": False,
        "repeats": 1,
        "flush": [],
    }
    for read in (
        lambda: _C.count_kernels(metrics=[], **call),
        lambda: _C.describe_metrics(["dram__bytes_read.sum"]),
        _C.metric_names,
    ):
        with pytest.raises(_C.CuptiError) as raised:
            read()
        assert raised.value.args == ("no CUPTI", "there is no CUDA driver")

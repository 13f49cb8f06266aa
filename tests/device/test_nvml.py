"""The fake NVML is no more lenient than nvidia-ml-py."""

from types import ModuleType

import pytest


def test_names_that_nvidia_ml_py_lacks_are_refused(gpu: ModuleType) -> None:
    for name in ("nvmlDeviceGetClockRate", "nvmlDeviceSetClocks", "NVML_CLOCK", "NVMLError_Lost"):
        with pytest.raises(AttributeError, match=name):
            getattr(gpu, name)


def test_calls_that_nvidia_ml_py_does_not_take_are_refused(gpu: ModuleType) -> None:
    for call in (
        lambda: gpu.nvmlDeviceGetPowerUsage(),
        lambda: gpu.nvmlDeviceGetPowerUsage("handle", 0),
        lambda: gpu.nvmlDeviceSetGpuLockedClocks("handle", 1500),
        lambda: gpu.nvmlDeviceGetTemperature("handle", kind=0),
        lambda: gpu.nvmlInit("handle"),
    ):
        with pytest.raises(TypeError, match="argument"):
            call()


def test_calls_that_nobody_stands_in_for_are_refused(gpu: ModuleType) -> None:
    with pytest.raises(AssertionError, match="the fake has no nvmlSystemGetDriverVersion"):
        gpu.nvmlSystemGetDriverVersion()

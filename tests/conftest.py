"""What tests share: the rule for tests that need a GPU, devices, and a fake GPU."""

from __future__ import annotations

import collections
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # For torch, when it is loaded: there is a worker for each core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
    # oneDNN's gradient of a 1x1 kernel with a stride writes past its workspace for fewer than eight
    # channels in channels_last, with AVX2 (https://github.com/uxlfoundation/oneDNN/issues/6035).
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX")

import torch

import tests.helpers.warm_python
from tests.helpers import FAKE_NVML

if importlib.util.find_spec("hypothesis") is not None:
    import hypothesis

    # The same examples in each run: whoever changes something else is not to find a fault of ours.
    # HYPOTHESIS_PROFILE=default looks for new ones.
    # No deadlines, since others may use the machine, too.
    hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None or torch.cuda.is_available():
        return
    if os.environ.get("FAIL_WITHOUT_CUDA") == "1":
        pytest.fail("FAIL_WITHOUT_CUDA=1 and there is no CUDA device", pytrace=False)
    pytest.skip("there is no CUDA device")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says in a line per reason how many tests were skipped."""
    reasons = collections.Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(autouse=True, scope="session")
def workers_do_not_take_turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests that run in parallel do not measure, and need not wait for each other's timings."""
    with pytest.MonkeyPatch.context() as environment:
        if "PYTEST_XDIST_WORKER" in os.environ:
            environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a Python that starts without importing torch anew."""
    with tests.helpers.warm_python.warm_python(tmp_path_factory.mktemp("warm")) as executable:
        yield executable


@pytest.fixture(autouse=True)
def forget_compiled_functions() -> None:
    """PyTorch limits how often a process compiles a function, and parametrized tests share one."""
    if "torch._dynamo" in sys.modules:  # it is imported by the first call of torch.compile
        with warnings.catch_warnings():  # of what PyTorch imports for it, which is no test's
            warnings.simplefilter("ignore")
            torch._dynamo.reset()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each kind of device that convtime knows."""
    return torch.device(request.param)


class _Spy(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def spy() -> _Spy:
    """A torch function mode; ``seen`` has the functions that were called under it."""
    return _Spy()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """A fake of nvidia-ml-py with one GPU, and a cache folder of its own for locks."""
    from convtime.device import clock_lock

    fake = _load("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    for name, answer in _load("one_gpu").ANSWERS.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(clock_lock, "_warned", set())
    yield fake
    for name in fake.answers:
        assert hasattr(fake, f"nvmlDeviceGet{name}"), f"nvidia-ml-py cannot be asked for {name}"
    assert fake.initialised == 0
    assert clock_lock._held == []


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FAKE_NVML / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

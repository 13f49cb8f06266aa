"""What tests of recordings share."""

from collections.abc import Iterator

import pytest
import torch

from convtime.recording import record as recording_module
from tests.recording.traces import AUTOGRAD, FakeTrace


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """The tensors are so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> FakeTrace:
    """What the next recording records with."""
    fake = FakeTrace()
    monkeypatch.setattr(recording_module, "_begin_trace", lambda method: (fake, ""))
    monkeypatch.setattr(recording_module, "_other_devices", list)
    monkeypatch.setattr(recording_module, "_autograd_threads", lambda trace: {AUTOGRAD})
    monkeypatch.setattr(recording_module, "resolve_device", lambda device: torch.device("cpu"))
    return fake

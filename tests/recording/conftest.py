"""What tests of recordings share."""

import pytest
import torch

from convtime.recording import record as recording_module
from tests.helpers.threads import one_thread as one_thread
from tests.recording.traces import AUTOGRAD, FakeTrace


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> FakeTrace:
    """What the next recording records with."""
    fake = FakeTrace()
    monkeypatch.setattr(recording_module, "_begin_trace", lambda method: (fake, ""))
    monkeypatch.setattr(recording_module, "_other_devices", list)
    monkeypatch.setattr(recording_module, "_autograd_threads", lambda trace: {AUTOGRAD})
    monkeypatch.setattr(recording_module, "resolve_device", lambda device: torch.device("cpu"))
    return fake

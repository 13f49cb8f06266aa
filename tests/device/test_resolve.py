"""Which device is meant."""

from __future__ import annotations

import pytest
import torch

from convtime.core.errors import InputError
from convtime.device.resolve import resolve_device


def test_the_current_gpu_is_meant_and_no_other_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device() == torch.device("cpu")
    with pytest.raises(InputError, match=r"^device 'cuda' is not available: .*; use cpu$"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve_device() == resolve_device("cuda") == torch.device("cuda:1")
    assert resolve_device("cuda:0") == torch.device("cuda:0")
    says = r"^device must be below cuda:2 on this machine, got 'cuda:2'$"
    with pytest.raises(InputError, match=says):
        resolve_device("cuda:2")
    for name in ("gpu", "meta", "cuda:x", ""):
        with pytest.raises(InputError, match=f"^device must be cpu, cuda or .*, got '{name}'$"):
            resolve_device(name)

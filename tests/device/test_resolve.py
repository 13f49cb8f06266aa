"""Which device is meant."""

import pytest
import torch

from convtime.core.errors import InputError
from convtime.device.resolve import resolve_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:x", ""])
def test_unknown_devices(name):
    with pytest.raises(InputError, match=f"^device must be cpu, cuda or cuda:N, got '{name}'$"):
        resolve_device(name)


def test_missing_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device() == CPU
    with pytest.raises(InputError, match=r"^device 'cuda' is not available: .*; use cpu$"):
        resolve_device("cuda")


def test_the_current_gpu_is_meant_and_no_other_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve_device() == resolve_device("cuda") == torch.device("cuda:1")
    assert resolve_device("cuda:0") == torch.device("cuda:0")
    says = r"^device must be below cuda:2 on this machine, got 'cuda:2'$"
    with pytest.raises(InputError, match=says):
        resolve_device("cuda:2")

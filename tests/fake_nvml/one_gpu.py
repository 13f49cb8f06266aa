"""What torch.cuda says on a machine with one GPU, on bus 25; in child processes, on import."""

import types

import torch

ANSWERS = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_properties": lambda _device: types.SimpleNamespace(
        pci_domain_id=1,
        pci_bus_id=0x19,
        pci_device_id=2,
        uuid="11111111-2222-3333-4444-555555555555",
    ),
}


def pretend():
    for name, answer in ANSWERS.items():
        setattr(torch.cuda, name, answer)

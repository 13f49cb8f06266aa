"""Stands in for nvidia-ml-py: a GPU whose answers a test sets, and a list of what was asked of it.

Names, signatures, constants and errors are those of the real module, which needs no GPU to be
imported. In a child process, the environment says where every change to the GPU is written down.
"""

import importlib.machinery
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

UUID = "GPU-11111111-2222-3333-4444-555555555555"


def _nvidia_ml_py():
    """The real module, under a name that leaves `pynvml` to this one."""
    name = "nvidia_ml_py"
    if name not in sys.modules:
        # In a child process, this file is what the path has first for `pynvml`.
        path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).parent]
        found = importlib.machinery.PathFinder.find_spec("pynvml", path)
        spec = importlib.util.spec_from_file_location(name, found.origin)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


_real = _nvidia_ml_py()

#: What nvmlDeviceGet<name> answers: a value, an exception to raise, or a function of its arguments.
answers = {
    "UUID": UUID,
    "ClockInfo": lambda kind: {_real.NVML_CLOCK_SM: 1980, _real.NVML_CLOCK_MEM: 3201}[kind],
    "FieldValues": lambda _fields: [
        types.SimpleNamespace(
            nvmlReturn=_real.NVML_SUCCESS, value=types.SimpleNamespace(uiVal=125_500)
        )
    ],
    "PowerUsage": 120_000,
    "Temperature": 41,
    "CurrentClocksEventReasons": 0,
    "SupportedMemoryClocks": [3201, 2619],
    "SupportedGraphicsClocks": lambda _memory: [1980, 1965, 1500, 1485, 345],
}

#: What nvmlDevice<name>, for a change, raises.
failures: dict[str, BaseException] = {}

#: Changes so far, e.g. "SetGpuLockedClocks 1500 1500".
changes: list[str] = []

initialised = 0
bus_id = None


def _init():
    global initialised
    if "Init" in failures:
        raise failures["Init"]
    initialised += 1


def _shutdown():
    global initialised
    initialised -= 1


def _handle_by_pci_bus_id(asked):
    global bus_id
    bus_id = asked
    return "handle"


_OTHERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": _init,
    "nvmlShutdown": _shutdown,
    "nvmlDeviceGetHandleByPciBusId": _handle_by_pci_bus_id,
}


def __getattr__(name):
    real = getattr(_real, name)  # an AttributeError for what nvidia-ml-py has not
    if not name.startswith("nvml"):
        return real
    signature = inspect.signature(real)

    def stand_in(*arguments, **keywords):
        bound = signature.bind(*arguments, **keywords).args
        if name in _OTHERS:
            return _OTHERS[name](*bound)
        if name.startswith("nvmlDeviceGet"):
            return _answer(name.removeprefix("nvmlDeviceGet"), bound[1:])
        assert name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")), f"the fake has no {name}"
        return _change(name.removeprefix("nvmlDevice"), bound[1:])

    return stand_in


def _answer(question, arguments):
    assert initialised > 0
    answer = answers.get(question, _real.NVMLError_NotSupported())
    answer = answer(*arguments) if callable(answer) else answer
    if isinstance(answer, Exception):
        raise answer
    return answer


def _change(name, arguments):
    assert initialised > 0
    if name in failures:
        raise failures[name]
    changes.append(" ".join([name, *map(str, arguments)]))
    if "FAKE_NVML_CHANGES" in os.environ:
        with open(os.environ["FAKE_NVML_CHANGES"], "a", encoding="ascii") as file:
            print(changes[-1], file=file)

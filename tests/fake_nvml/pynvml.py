# ruff: noqa: N801, N802, N818 (the names are nvidia-ml-py's)
"""Stands in for nvidia-ml-py: a GPU whose answers a test sets, and a list of what was asked of it.

In a child process, the environment says where every change to the GPU is written down.
"""

import os
import types

NVML_SUCCESS = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_TEMPERATURE_GPU = 0
NVML_FI_DEV_POWER_INSTANT = 186
NVML_CLOCK_LIMIT_ID_TDP = 0xFFFFFF01
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0

UUID = "GPU-11111111-2222-3333-4444-555555555555"


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_FunctionNotFound(NVMLError):
    pass


class NVMLError_NoPermission(NVMLError):
    pass


class NVMLError_Unknown(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


#: What nvmlDeviceGet<name> answers: a value, an exception to raise, or a function of its arguments.
answers = {
    "UUID": UUID,
    "ClockInfo": lambda kind: {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 3201}[kind],
    "FieldValues": lambda _fields: [
        types.SimpleNamespace(nvmlReturn=NVML_SUCCESS, value=types.SimpleNamespace(uiVal=125_500))
    ],
    "PowerUsage": 120_000,
    "Temperature": 41,
    "CurrentClocksEventReasons": 0,
    "SupportedMemoryClocks": [3201, 2619],
    "SupportedGraphicsClocks": lambda _memory: [1980, 1965, 1500, 1485, 345],
}

#: What nvmlDevice<name>, for a change, raises.
failures = {}

#: Changes so far, e.g. "SetGpuLockedClocks 1500 1500".
changes = []

initialised = 0
bus_id = None


def nvmlInit():
    global initialised
    if "Init" in failures:
        raise failures["Init"]
    initialised += 1


def nvmlShutdown():
    global initialised
    initialised -= 1


def nvmlDeviceGetHandleByPciBusId(asked):
    global bus_id
    bus_id = asked
    return "handle"


def __getattr__(name):
    if name.startswith("nvmlDeviceGet"):
        return lambda _handle, *arguments: _answer(name.removeprefix("nvmlDeviceGet"), arguments)
    if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")):
        return lambda _handle, *arguments: _change(name.removeprefix("nvmlDevice"), arguments)
    raise AttributeError(name)


def _answer(question, arguments):
    assert initialised > 0
    answer = answers.get(question, NVMLError_NotSupported())
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

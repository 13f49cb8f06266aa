"""`convtime doctor`: check whether timings can be trusted on this machine."""

from __future__ import annotations

import argparse
import json

import torch

from convtime.cli.arguments import DEVICE_HELP
from convtime.cli.exit_codes import DONE, FOUND
from convtime.cli.output import add_outputs, check_outputs, deliver, deliver_result, tell
from convtime.core.errors import InputError
from convtime.device.config import show_config
from convtime.device.proof import store
from convtime.device.resolve import resolve_device
from convtime.health.doctor import doctor
from convtime.health.proof import prove
from convtime.health.survey import survey


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Times kernels of known duration and a few operations with every method, "
        "checks the state of GPU and CPU, and gives advice; exits with 1 if a check failed. It "
        "takes up to 20 s on a GPU, and changes nothing."
    )
    parser.add_argument("--device", help=DEVICE_HELP)
    parser.add_argument(
        "--all",
        action="store_true",
        help="examine all GPUs and their links instead (clocks, power, temperature, ECC, PCIe, "
        "NVLink), without timing; exits with 1 if a check failed",
    )
    parser.add_argument(
        "--prove",
        action="store_true",
        help="check convtime's promises on this GPU (about 60 s) and store the result, which every "
        "measurement on it then reports; exits with 1 if a promise is broken",
    )
    parser.add_argument(
        "--config",
        action="store_true",
        help="only print versions, devices, build and timing methods, as JSON",
    )
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    check_outputs(options)
    if options.config:
        return _config(options)
    if options.all:
        return _survey(options)
    device = resolve_device(options.device)
    if options.prove:
        return _prove(options, device)
    tell("this takes some seconds, up to 20 on a GPU")
    seen = doctor(device)
    deliver(options, seen)
    return DONE if seen.passed else FOUND


def _config(options: argparse.Namespace) -> int:
    if options.device is not None or options.all or options.prove:
        raise InputError("--config examines nothing; leave out --device, --all and --prove")
    text = json.dumps(show_config(), indent=2)
    deliver_result(options, lambda: text, lambda: f"{text}\n")
    return DONE


def _survey(options: argparse.Namespace) -> int:
    if options.device is not None or options.prove:
        raise InputError("--all examines every GPU; leave out --device and --prove")
    surveyed = survey()
    deliver(options, surveyed)
    return DONE if surveyed.passed else FOUND


def _prove(options: argparse.Namespace, device: torch.device) -> int:
    if device.type != "cuda":
        raise InputError(
            "--prove needs a GPU, because it checks promises about times on one; leave it out to "
            "examine the CPU"
        )
    proved = prove(device, lambda part: tell(f"checking {part}"))
    store(proved)
    deliver(options, proved)
    return DONE if proved.holds else FOUND

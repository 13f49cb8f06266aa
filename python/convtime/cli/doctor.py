"""`convtime doctor`: check whether timings can be trusted on this machine."""

from __future__ import annotations

import argparse
import json

from convtime.cli.arguments import DEVICE_HELP
from convtime.cli.exit_codes import DONE, FOUND
from convtime.cli.output import add_outputs, deliver, deliver_result, tell
from convtime.core.checks import require
from convtime.device.config import show_config
from convtime.device.proof import Proof, store
from convtime.device.resolve import resolve_device
from convtime.health.doctor import doctor
from convtime.health.examination import Examination
from convtime.health.proof import prove
from convtime.health.survey import Survey, survey


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
    if options.config:
        require(
            options.device is None and not (options.all or options.prove),
            "--config examines nothing; leave out --device, --all and --prove",
        )
        text = json.dumps(show_config(), indent=2)
        deliver_result(options, lambda: text, lambda: f"{text}\n")
        return DONE
    result = _examined(options)
    deliver(options, result)
    passed = result.holds if isinstance(result, Proof) else result.passed
    return DONE if passed else FOUND


def _examined(options: argparse.Namespace) -> Survey | Proof | Examination:
    if options.all:
        require(
            options.device is None and not options.prove,
            "--all examines every GPU; leave out --device and --prove",
        )
        return survey()
    device = resolve_device(options.device)
    if not options.prove:
        tell("this takes some seconds, up to 20 on a GPU")
        return doctor(device)
    require(
        device.type == "cuda",
        "--prove needs a GPU, because it checks promises about times on one; leave it out to "
        "examine the CPU",
    )
    proof = prove(device, lambda part: tell(f"checking {part}"))
    store(proof)
    return proof

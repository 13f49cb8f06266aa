"""`convtime diagnose`: explain a statement's time."""

from __future__ import annotations

import argparse
import sys

from convtime.cli import arguments, snippet
from convtime.cli.output import add_outputs, tell
from convtime.diagnosis.diagnose import diagnose

_BUDGET = 15.0


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Calls a statement under conditions that each differ in one thing, and "
        "reports the causes of its time, with evidence and advice. "
        f"{snippet.NAMESPACE_HELP} "
        "For example: convtime diagnose 'torch.relu(x)' --setup 'x = torch.randn(1 << 20)'"
    )
    snippet.add_statement(parser, "diagnose")
    parser.add_argument("--name", help="name of the result (default: the statement)")
    snippet.add_setup_options(parser)
    parser.add_argument("--device", help=arguments.DEVICE_HELP)
    parser.add_argument(
        "--against",
        metavar="SECONDS|TOOL|FILE",
        help="another tool's time, to explain its difference from convtime's: seconds, do_bench, "
        "do_bench_cudagraph or timer (which are run), or a file that another tool wrote",
    )
    parser.add_argument(
        "--budget",
        type=arguments.number,
        metavar="SECONDS",
        default=_BUDGET,
        help=f"time after which no further check starts (default: {_BUDGET:g})",
    )
    parser.add_argument(
        "--counters",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="read hardware counters if permitted",
    )
    add_outputs(parser, verbose=True, markdown=True, reads={"--against": "against"})


def run(options: argparse.Namespace) -> None:
    statement = snippet.statement_of(options.statement)
    tell(f"this takes up to some {options.budget:.0f} s")
    with snippet.prepare(options) as (namespace, device):
        candidate = snippet.candidate_of(statement, options, namespace, name=options.name)
        diagnosis = diagnose(
            candidate,
            against=_against(options.against),
            budget=options.budget,
            device=device,
            counters=options.counters,
            again=_again(statement, options, str(device)),
        )
    snippet.deliver(options, diagnosis, device)


def _against(given: str | None) -> float | str | None:
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        return given


def _again(statement: str, options: argparse.Namespace, device: str) -> list[str]:
    """Return the command that times the statement in a fresh process."""
    command = [sys.executable, "-m", "convtime", "time", "--device", device]
    command += ["--cache", "warm", "--placement", "as-is", "--regime", "as-is", "--budget", "0.3"]
    command += ["--no-exclusive", "--json", "-"]
    for flag, lines in (("--setup", options.setup), ("--before", options.before)):
        command += [f"{flag}={line}" for line in lines]
    command += ["--backward"] if options.backward else []
    return [*command, "--", statement]

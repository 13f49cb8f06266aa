"""Show a Proof: a line per promise, and the number of promises that hold."""

from __future__ import annotations

from collections.abc import Iterator

from convtime.device.proof import Proof
from convtime.view.page import Block, Line, Table

_SAID = {True: "holds", False: "BROKEN", None: "not checked"}


def line(proof: Proof) -> str:
    return proof.summary


def printed(proof: Proof) -> Iterator[Block]:
    versions = ", ".join(f"{what} {version}" for what, version in proof.versions.items())
    yield Line(f"{proof.gpu}; {versions}")
    yield Table(
        (),
        [
            (_SAID[promise.holds], f"{promise.name}: {promise.sentence}")
            for promise in proof.promises
        ],
    )
    yield Line(line(proof), role="answer")


details = printed

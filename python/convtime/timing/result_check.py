"""Check that candidates compute the same result: call each once more and compare the results."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from convtime.core.errors import first_line
from convtime.timing.candidate import Candidate, clearing_gradients, gradients_of
from convtime.timing.comparison import Agreement
from convtime.timing.options import Options
from convtime.timing.sampling.measure import TimeLimit, find_devices, on, take_turn
from convtime.timing.sampling.object_graph import Walk, is_plain, tensors_of, without_modes
from convtime.timing.structure import Structure, difference, shortened, structure_of

Check = Literal["close", "exact"]
_Key = TypeVar("_Key")

# (relative tolerance for each element, as in torch.testing.assert_close; tolerance as a share of
# the root mean square). Sums that cancel have errors in proportion to the size of their terms. The
# second is eight roundings for the dtypes that tensor cores multiply, and for float32 the error of
# a sum of 100,000 products.
_TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 2e-5),
    torch.float16: (1e-3, 8e-3),
    torch.bfloat16: (1.6e-2, 6e-2),
}
_TF32 = (1e-3, 8e-3)  # TF32 rounds like float16
_SPOILED_BLOCKS = 4  # blocks of each result's size, if they are small
_SPOILED_BYTES = 1 << 28
_CHUNK = 1 << 22  # elements compared at a time, to need little memory besides the results
_LOW_HALF = 0xFFFFFFFF
_FINITE = "finite"  # finite values that differ
_MOST_OBJECTS = 10_000  # objects searched for tensors that a call may write to


class _NotComparableError(Exception):
    """Why a result cannot be compared, as the end of a sentence."""


@dataclasses.dataclass(frozen=True)
class _Result:
    """The result of one call.

    Attributes:
        structure: the parts of the result.
        gradients: for a backward pass, the gradient that it adds to each leaf tensor.
        wrote: whether the call wrote to tensors that it was given.
    """

    structure: Structure
    gradients: dict[torch.Tensor, torch.Tensor]
    wrote: bool

    def copied(self) -> _Result:
        """The same values in tensors that no later call writes to."""
        with torch.no_grad(), without_modes():
            return dataclasses.replace(
                self,
                structure=dataclasses.replace(
                    self.structure, tensors=_copies(self.structure.tensors)
                ),
                gradients=_copies(self.gradients),
            )


def check_results(
    candidates: Sequence[Candidate], how: Check, options: Options, limit: TimeLimit
) -> dict[str, Agreement]:
    """Check whether each candidate returns the same result as the first one.

    Each candidate is called once, after its ``before`` and in the caller's modes. The first is
    called twice. Where results differ, both are called again, because either may be
    nondeterministic.

    Args:
        candidates: the baseline first.
        how: ``close`` compares within a tolerance for each dtype, ``exact`` bit by bit.
        options: the options of the timing.
        limit: time limit; checked once, before the first call.

    Returns:
        The finding for each candidate except the first, by name.
    """
    late = Agreement(None, "not checked, since the timeout has passed")
    if limit.seconds_left > 0:
        devices = find_devices(candidates, options.device)
        with (
            contextlib.suppress(TimeoutError),  # the GPU may not be available in time
            take_turn(devices, options, limit),
            on(devices.device, options.stream),
        ):
            return _check_all(candidates, how)
    return {other.name: late for other in candidates[1:]}


def check_one_call_each(
    baseline: Candidate, others: Sequence[Candidate], how: Check
) -> tuple[Agreement, list[Agreement]]:
    """Check whether the baseline repeats, and whether one call of each other candidate agrees.

    Unlike :func:`check_results`, this also reports a candidate whose results vary between calls.
    """
    try:
        expected = _call(baseline).copied()
        repeats = _difference(expected, _call(baseline), how)
    except _NotComparableError as error:
        return _unchecked("the baseline's", error), []
    return repeats, [_difference(expected, _call(other), how) for other in others]


def _check_all(candidates: Sequence[Candidate], how: Check) -> dict[str, Agreement]:
    baseline, *others = candidates
    try:
        expected = _call(baseline).copied()
        again = _difference(expected, _call(baseline), how)
    except Exception as error:  # the calls may raise anything; keep the measurements
        return dict.fromkeys((other.name for other in others), _unchecked("the baseline's", error))
    if again.same is False:
        why = f"the baseline does not repeat: between two calls, {again.sentence}"
        return {other.name: Agreement(None, why) for other in others}
    agreements = {}
    for other in others:
        agreements[other.name], expected = _checked(baseline, expected, other, how)
    return agreements


def _checked(
    baseline: Candidate, expected: _Result, other: Candidate, how: Check
) -> tuple[Agreement, _Result]:
    """Return the finding for a candidate, and the baseline's expected result from now on."""
    try:
        _spoil(expected)
        called = _call(other)
        agreement = _difference(expected, called, how)
        if agreement.same is False:
            agreement = _repeated(baseline, expected, other, called, how) or agreement
        if called.wrote:  # possibly to tensors that the next candidates use
            expected = _call(baseline).copied()
            note = f"{agreement.sentence}; it writes to tensors that it is given"
            agreement = dataclasses.replace(agreement, sentence=note)
    except Exception as error:  # the calls may raise anything; keep the measurements
        agreement = _unchecked("its", error)
    return agreement, expected


def _repeated(
    baseline: Candidate, expected: _Result, other: Candidate, called: _Result, how: Check
) -> Agreement | None:
    """Return a finding if either of the two does not repeat: then the difference means nothing."""
    again = _difference(called.copied(), _call(other), how)
    if again.same is False:
        why = f"it does not repeat: between two calls, {again.sentence}"
        return Agreement(None, why, again.largest_error)
    if _difference(expected, _call(baseline), how).same is False:
        why = "the baseline's result changed: something writes to the candidates' inputs"
        return Agreement(None, why)
    return None


def _call(candidate: Candidate) -> _Result:
    candidate = clearing_gradients(candidate)
    if candidate.before is not None:
        candidate.before()
    given = list(tensors_of(candidate, Walk(_MOST_OBJECTS)))
    before = _versions(given)
    with torch.enable_grad() if candidate.backward else contextlib.nullcontext():
        result = candidate.fn(*candidate.args, **candidate.kwargs)
    structure = structure_of(result)
    tensors = structure.tensors
    if not tensors and (result is None or not structure.values):
        raise _NotComparableError("has nothing that can be compared")
    # First, because a subclass may wait for its data in any other operation.
    for tensor in tensors.values():
        if not is_plain(tensor) or tensor.is_meta:
            kind = str(tensor.layout).removeprefix("torch.")
            raise _NotComparableError(
                f"is of type {type(tensor).__name__} ({kind}, {tensor.device.type}), and only "
                "dense tensors are compared"
            )
    gradients = gradients_of(result) if candidate.backward else {}
    distinct = {id(tensor): tensor.detach() for tensor in tensors.values()}
    structure.tensors = {position: distinct[id(tensor)] for position, tensor in tensors.items()}
    return _Result(structure, gradients, before != _versions(given))


def _spoil(expected: _Result) -> None:
    """Fill free memory with NaN, or -1, where the next result may be allocated.

    The freed memory still holds the baseline's results. Without this, a candidate that writes
    nothing would appear to return them.
    """
    blocks: list[torch.Tensor] = []  # keep all: a freed one would be reused by the next
    with contextlib.suppress(RuntimeError), without_modes(), torch.no_grad():  # if out of memory
        for tensor in _distinct(expected.structure.tensors):
            if tensor.device.type == "cpu" and tensor.nbytes > _free_host_bytes():
                continue
            count = max(1, min(_SPOILED_BLOCKS, _SPOILED_BYTES // max(1, tensor.nbytes)))
            blocks += [
                torch.full((tensor.nbytes,), 0xFF, dtype=torch.uint8, device=tensor.device)
                for _ in range(count)
            ]


def _versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    # Inference tensors have no version counter.
    return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


def _distinct(tensors: Mapping[Any, torch.Tensor]) -> list[torch.Tensor]:
    """Each tensor once: a result may contain the same tensor several times."""
    return list({id(tensor): tensor for tensor in tensors.values()}.values())


def _copies(tensors: Mapping[_Key, torch.Tensor]) -> dict[_Key, torch.Tensor]:
    distinct = _distinct(tensors)
    needed = sum(tensor.nbytes for tensor in distinct if tensor.device.type == "cpu")
    free = _free_host_bytes()
    if needed > free:  # with overcommit, the allocation succeeds and a later write is killed
        raise MemoryError(f"{needed:,} bytes are needed, {free:,} are free")
    copies = {id(tensor): tensor.clone() for tensor in distinct}
    return {key: copies[id(tensor)] for key, tensor in tensors.items()}


def _free_host_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(amount.split()[0])
    raise OSError("/proc/meminfo does not say how much memory is available")


def _unchecked(whose: str, error: Exception) -> Agreement:
    # The CPU allocator, unlike the GPU's, has no dedicated exception type.
    full = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if isinstance(error, _NotComparableError):
        why = f"{whose} result {error}"
    elif full or "can't allocate memory" in str(error):
        why = f"there is not enough memory to copy {whose} result ({first_line(error)})"
    else:
        why = f"a call to check {whose} result raised {first_line(error)}"
    return Agreement(None, f"not checked, since {why}")


def _difference(expected: _Result, got: _Result, how: Check) -> Agreement:
    with torch.no_grad(), without_modes():
        agreement = _of_results(expected, got, how)
        if agreement.same is False or not (expected.gradients or got.gradients):
            return agreement
        if not (expected.gradients and got.gradients):
            note = f"{agreement.sentence}; only one of the two is a backward pass"
            return dataclasses.replace(agreement, sentence=note)
        if expected.gradients.keys() != got.gradients.keys():
            note = (
                f"{agreement.sentence}; gradients belong to different tensors and are not compared"
            )
            return dataclasses.replace(agreement, same=None, sentence=note)
        pairs = [
            ("" if len(expected.gradients) == 1 else f"[{number}]", gradient, got.gradients[leaf])
            for number, (leaf, gradient) in enumerate(expected.gradients.items())
        ]
        of_gradients = _of_tensors(pairs, how)
        sentence = f"{agreement.sentence}; gradients: {of_gradients.sentence}"
        return dataclasses.replace(of_gradients, sentence=sentence)


def _of_results(expected: _Result, got: _Result, how: Check) -> Agreement:
    differs = difference(expected.structure, got.structure, exact=how == "exact")
    if differs:
        return Agreement(False, differs)
    agreement = Agreement(True, "the same values")
    ours = got.structure.tensors
    if ours:
        pairs = [
            (position, tensor, ours[position])
            for position, tensor in expected.structure.tensors.items()
        ]
        agreement = _of_tensors(pairs, how)
    unknown = {**expected.structure.unknown, **got.structure.unknown}
    if agreement.same and unknown:
        position, what = next(iter(unknown.items()))
        where = f" at {shortened(position)}" if position else ""
        sentence = f"{agreement.sentence}, but {what}{where} is not compared"
        return dataclasses.replace(agreement, same=None, sentence=sentence)
    return agreement


def _of_tensors(pairs: Sequence[tuple[str, torch.Tensor, torch.Tensor]], how: Check) -> Agreement:
    """Compare the tensors at each position of the result."""
    known: dict[tuple[int, int], Agreement] = {}
    for _, *pair in pairs:
        key = id(pair[0]), id(pair[1])
        if key not in known:
            known[key] = _of_tensor(pair[0], pair[1], how)
    agreements = [known[id(expected), id(got)] for _, expected, got in pairs]
    # Report a wrong tensor first, and of several the one with the largest error.
    worst = max(
        range(len(agreements)),
        key=lambda i: (not agreements[i].same, agreements[i].largest_error or 0.0),
    )
    if len(agreements) == 1 and not pairs[0][0]:
        return agreements[0]
    sentence = f"{agreements[worst].sentence}, at {shortened(pairs[worst][0])}"
    return dataclasses.replace(agreements[worst], sentence=sentence)


def _of_tensor(expected: torch.Tensor, got: torch.Tensor, how: Check) -> Agreement:
    if got.shape != expected.shape:
        return Agreement(False, f"its shape is {tuple(got.shape)}, not {tuple(expected.shape)}")
    if how == "exact" and got.dtype != expected.dtype:
        return Agreement(False, f"it is {_name(got.dtype)}, not {_name(expected.dtype)}")
    integers = [_is_integer(each) for each in (expected, got)]
    pieces = list(zip(_chunks(expected), _chunks(got.to(expected.device)), strict=True))
    if how == "close" and expected.dtype == got.dtype and expected.dtype in _TOLERANCES:
        # Most results are equal, which takes a hundredth of the time to find.
        pieces = [chunks for chunks in pieces if not torch.equal(*chunks)]
    may_be_off = pieces and not any(integers) and how == "close"
    tolerance = _tolerance(expected, got) if may_be_off else None
    wrong: Counter[str] = Counter()
    largest: float = 0
    for chunks in pieces:
        differ = _differ(*chunks, tolerance)
        if bool(differ.any()):
            wrong += _ways(*(chunk[differ] for chunk in chunks))
        error = _largest_difference(*chunks) if all(integers) else _largest_error(*chunks)
        largest = max(largest, error)
    kind = _name(got.dtype)
    if got.dtype != expected.dtype:
        kind += f" where the baseline's is {_name(expected.dtype)}"
    off = f"{largest:.3g}" if isinstance(largest, float) else f"{largest:,}"
    if wrong:
        allowed = "none may" if tolerance is None else str(tolerance)
        sentence = f"{wrong.total():,} of {expected.numel():,} numbers differ"
        by = f"by {off} at most" if _FINITE in wrong else ""
        if other := [f"{count:,} {way}" for way, count in wrong.items() if way != _FINITE]:
            finite = f", {wrong[_FINITE]:,} {by}" if by else ""
            sentence += f": {', '.join(other)}{finite}"
        else:
            sentence += f", {by}"
        return Agreement(False, f"{sentence} ({kind}; {allowed})", float(largest))
    bits = " to the bit" if how == "exact" else ""
    sentence = f"off by {off} at most" if largest else f"the same numbers{bits}"
    return Agreement(True, f"{sentence} ({kind})", float(largest))


def _ways(expected: torch.Tensor, got: torch.Tensor) -> Counter[str]:
    """Count the elements that differ, by the kind of difference; each pair given differs."""
    their_nan, our_nan = expected.isnan(), got.isnan()
    theirs, ours = (each.isinf() & ~each.isnan() for each in (expected, got))
    equal = _equal(expected, got)
    numbers = ~(their_nan | our_nan)
    ways = {
        "NaN where the baseline has numbers": our_nan & ~their_nan,
        "numbers where the baseline has NaN": their_nan & ~our_nan,
        "infinite where the baseline is finite": ours & ~theirs & numbers,
        "finite where the baseline is infinite": theirs & ~ours & numbers,
        "infinite with another sign": theirs & ours & ~equal,
        "by the sign of 0 or the bits of NaN": equal | (their_nan & our_nan),
        _FINITE: numbers & ~(theirs | ours) & ~equal,
    }
    counts = {way: int(those.sum()) for way, those in ways.items()}
    return Counter({way: count for way, count in counts.items() if count})


def _equal(expected: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    pair = expected, got
    if expected.dtype == got.dtype or not all(map(_is_integer, pair)):
        return expected == got
    # By halves, because PyTorch has no common dtype for unsigned and other integers.
    (their_high, their_low), (our_high, our_low) = map(_halves, pair)
    return (their_high == our_high) & (their_low == our_low)


def _largest_error(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Largest error of the finite elements."""
    expected, got = _wide(expected), _wide(got)
    errors = (expected - got).abs()
    finite = expected.isfinite() & got.isfinite()
    return float(errors.where(finite, torch.zeros_like(errors)).nan_to_num().max())


def _largest_difference(expected: torch.Tensor, got: torch.Tensor) -> int:
    """Largest difference of integers, without rounding or overflow."""
    (their_high, their_low), (our_high, our_low) = map(_halves, (expected, got))
    high, low = their_high - our_high, their_low - our_low
    high, low = high + (low >> 32), low & _LOW_HALF
    negative = high < 0
    high = torch.where(negative, -high - (low > 0).long(), high)
    low = torch.where(negative, -low & _LOW_HALF, low)
    highest = high.max()
    return (int(highest) << 32) + int(low[high == highest].max())


def _halves(integers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Upper and lower 32 bits of integers, each as int64; only the upper half is signed."""
    if integers.dtype != torch.uint64:
        integers = integers.long()
        return integers >> 32, integers & _LOW_HALF
    bits = integers.view(torch.int64)
    return (bits >> 32) & _LOW_HALF, bits & _LOW_HALF


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


@dataclasses.dataclass(frozen=True)
class _Tolerance:
    """Allowed error of each element."""

    relative: float
    of_scale: float
    scale: float

    def __str__(self) -> str:
        return (
            f"{self.relative:g} of each and {self.of_scale:g} of {self.scale:.3g}, their root mean "
            "square, are allowed"
        )


def _tolerance(expected: torch.Tensor, got: torch.Tensor) -> _Tolerance:
    """Tolerance of the coarser dtype."""
    of_dtypes = [_of_dtype(each.dtype, each.device) for each in (expected, got)]
    return _Tolerance(*max(of_dtypes), _root_mean_square(expected))


def _differ(
    expected: torch.Tensor, got: torch.Tensor, tolerance: _Tolerance | None
) -> torch.Tensor:
    """For each element, whether the two values differ."""
    if tolerance is None:
        if expected.dtype != got.dtype:
            return ~_equal(expected, got)
        size = expected.element_size()
        bits = (each.view(torch.uint8).view(-1, size) for each in (expected, got))
        return (next(bits) != next(bits)).any(1)
    expected, got = _wide(expected), _wide(got)
    allowed = tolerance.relative * expected.abs() + tolerance.of_scale * tolerance.scale
    near = expected.isfinite() & got.isfinite() & ((expected - got).abs() <= allowed)
    return ~(near | (expected == got) | (expected.isnan() & got.isnan()))


def _of_dtype(dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    real = dtype.to_real() if dtype.is_complex else dtype
    if real == torch.float32 and device.type == "cuda" and _tf32_allowed():
        return _TF32
    coarse = 2 * torch.finfo(real).eps
    return _TOLERANCES.get(real, (coarse, 4 * coarse))


def _tf32_allowed() -> bool:
    backends: Any = torch.backends
    operations = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    return any(operation.fp32_precision == "tf32" for operation in operations)


def _root_mean_square(tensor: torch.Tensor) -> float:
    """Root mean square of the finite elements; scaled if their squares overflow a float."""
    known = _mean_square(tensor, 1.0)
    if math.isfinite(known):
        return math.sqrt(known)
    scale = sys.float_info.max
    return scale * math.sqrt(_mean_square(tensor, scale))


def _mean_square(tensor: torch.Tensor, scale: float) -> float:
    squares, count = 0.0, 0
    for chunk in _chunks(tensor):
        known = _wide(chunk).abs()
        known = known[known.isfinite()] / scale
        squares += float(known.square().sum())
        count += known.numel()
    return squares / count if count else 0.0


def _wide(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.to(torch.complex128 if numbers.is_complex() else torch.float64)


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    return torch.split(flat, _CHUNK) if flat.numel() else ()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

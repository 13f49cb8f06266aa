"""Candidates: a callable with its arguments, and what runs before each call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType, NoneType
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import torch
from torch.utils import _pytree as pytree

from convtime.core.checks import check_type, described, is_finite, require
from convtime.timing.options import CallOptions, Options, options_of

Kind = Literal["generator", "coroutine", "asynchronous generator"]

#: Types that such functions return; futures and other awaitables have other types.
DEFERRED_TYPES = frozenset({GeneratorType, CoroutineType, AsyncGeneratorType})

# For each kind: whether a function makes it, whether an object is one, and what to pass instead.
_DEFERRED: dict[Kind, tuple[Callable[[Any], bool], Callable[[Any], bool], str]] = {
    "coroutine": (
        inspect.iscoroutinefunction,
        inspect.isawaitable,
        "passes it to asyncio.run()",
    ),
    "generator": (inspect.isgeneratorfunction, inspect.isgenerator, "calls list() on it"),
    "asynchronous generator": (
        inspect.isasyncgenfunction,
        inspect.isasyncgen,
        "iterates over it in a coroutine that it passes to asyncio.run()",
    ),
}


def deferred_kind(fn: object) -> Kind | None:
    """Return the kind of deferred object that a function returns; None for other callables."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    functions = fn, inspect.getattr_static(type(fn), "__call__", None)
    for kind, (makes_it, _, _) in _DEFERRED.items():
        if any(map(makes_it, functions)):
            return kind
    return None


def refuse_deferred(what: str, fn: object, name: str) -> None:
    """Refuse a function whose calls would defer their work.

    Args:
        what: role of the function.
        fn: the function, or any other callable.
        name: name of the function for the message.

    Raises:
        TypeError: for a generator, coroutine or asynchronous generator function.
    """
    if (kind := deferred_kind(fn)) is not None:
        article = "an" if kind.startswith("a") else "a"
        raise TypeError(
            f"{what} must do its work when it is called, got {name!r}, {article} {kind} function, "
            f"which starts later; pass a function that {_DEFERRED[kind][2]}"
        )


def refuse_deferred_result(result: object, name: str) -> None:
    """Refuse the result of a call that deferred its work; close it if it is a coroutine.

    Raises:
        TypeError: for a generator, a coroutine, a future, or any other awaitable.
    """
    for _, is_deferred, remedy in _DEFERRED.values():
        if not is_deferred(result):
            continue
        if isinstance(result, CoroutineType):  # prevents the warning "was never awaited"
            result.close()
        raise TypeError(
            f"the timed function must do its work when it is called, got {name!r}, which returned "
            f"an object of type {type(result).__name__} that starts later; pass a function that "
            f"{remedy}"
        )


Function = TypeVar("Function", bound=Callable[..., object])


@dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)
class Candidate:
    """One operation to time, ``fn(*args, **kwargs)``; see :func:`convtime.compare`.

    Tensors that are passed as arguments, rather than held by a closure, can be copied, for example
    for ``cache="rotate"``.

    Args:
        fn: callable to time. Its result is dropped after the timed region; it may return None.
        args: positional arguments of ``fn``.
        kwargs: keyword arguments of ``fn``.
        name: name of the result. Default: the name of the function.
        before: called without arguments before each call, outside the timed region and before the
            cache flush; its GPU work is not timed either.
        grad_to_none: tensors whose ``grad`` is set to None before each call, outside the timed
            region, so that a backward pass in ``fn`` writes gradients instead of adding to them.
        backward: whether to time the backward pass of ``fn``'s result instead, with random
            gradients. The forward pass runs before each call, outside the timed region. Gradients
            are set to None first; afterwards they are those of the last call.
        flops: floating-point operations of a call. They are compared with the rate that the device
            reaches, which is measured once, after the timing and beyond any ``timeout`` (see
            ``ceilings``).
        nbytes: bytes that a call must move, compared in the same way.

    Raises:
        TypeError: if an argument has the wrong type, such as an ``fn`` that is not callable, or for
            generator functions and coroutine functions, whose calls do none of their work.
        ValueError: if ``flops`` or ``nbytes`` is not a positive number.
    """

    fn: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    name: str
    before: Callable[[], object] | None
    backward: bool
    grad_to_none: tuple[torch.Tensor, ...]
    flops: float | None
    nbytes: float | None

    def __init__(
        self,
        fn: Annotated[
            Callable[..., object],
            "callable to time. Its result is dropped after the timed region; it may return None.",
        ],
        *args: Annotated[Any, "positional arguments of ``fn``."],
        kwargs: Annotated[Mapping[str, Any] | None, "keyword arguments of ``fn``."] = None,
        name: Annotated[
            str | None, "name of the result. Default: the name of the function."
        ] = None,
        before: Annotated[
            Callable[[], object] | None,
            "called without arguments before each call, outside the timed region and before the "
            "cache flush; its GPU work is not timed either.",
        ] = None,
        grad_to_none: Annotated[
            Iterable[torch.Tensor] | None,
            "tensors whose ``grad`` is set to None before each call, outside the timed region, so "
            "that a backward pass in ``fn`` writes gradients instead of adding to them.",
        ] = None,
        backward: Annotated[
            bool,
            "whether to time the backward pass of ``fn``'s result instead, with random gradients. "
            "The forward pass runs before each call, outside the timed region. Gradients are set "
            "to None first; afterwards they are those of the last call.",
        ] = False,
        flops: Annotated[
            float | None,
            "floating-point operations of a call. They are compared with the rate that the device "
            "reaches, which is measured once, after the timing and beyond any ``timeout`` (see "
            "``ceilings``).",
        ] = None,
        nbytes: Annotated[
            float | None, "bytes that a call must move, compared in the same way."
        ] = None,
    ) -> None:
        if isinstance(fn, Candidate):
            raise TypeError(
                f"the timed function must be callable, got the Candidate {fn.name!r}; use it "
                "as it is, or make one of its function and its arguments"
            )
        check_type("a measurement's name", name, (str, NoneType), "a string")
        check_type("kwargs", kwargs, (Mapping, NoneType), "a mapping of names to values")
        check_type("backward", backward, bool, "True or False")
        for what, value in (("flops", flops), ("nbytes", nbytes)):
            is_positive = value is None or (is_finite(value) and value > 0)
            require(is_positive, f"{what} must be a positive number, got {described(value)}")
        name = name_of(fn) if name is None else name
        if not callable(fn):
            raise TypeError(
                f"the timed function must be callable, got {type(fn).__name__} for {name!r}; "
                "pass the function and its arguments, not its result"
            )
        refuse_deferred("the timed function", fn, name)
        if before is not None and not callable(before):
            raise TypeError(f"before must be callable, got {type(before).__name__}")
        refuse_deferred("before", before, "None" if before is None else name_of(before))
        self.__dict__.update(
            fn=fn,
            args=args,
            kwargs=kwargs or {},
            name=name,
            before=before,
            backward=backward,
            grad_to_none=() if grad_to_none is None else _tensors(grad_to_none),
            flops=None if flops is None else float(flops),
            nbytes=None if nbytes is None else float(nbytes),
        )

    def named(self, name: str | None) -> Candidate:
        """Return it under another name; None keeps its own."""
        check_type("a measurement's name", name, (str, NoneType), "a string")
        return self if name is None else self.but(name=name)

    def but(self, **changes: Any) -> Candidate:
        """Return a copy with some fields changed."""
        changed = object.__new__(type(self))  # of a call's many copies: copy.copy is slow
        changed.__dict__.update(self.__dict__, **changes)
        return changed

    @property
    def acts_before_calls(self) -> bool:
        """Whether something runs before each call."""
        return self.backward or self.before is not None or bool(self.grad_to_none)

    def __repr__(self) -> str:
        return f"<convtime.Candidate {self.name}>"


def _tensors(given: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    if isinstance(given, torch.Tensor):
        raise TypeError("grad_to_none must be a sequence of tensors, got one tensor; put it in []")
    check_type("grad_to_none", given, Iterable, "a sequence of tensors")
    tensors = tuple(given)  # an iterator would be empty at the second call
    for tensor in tensors:
        check_type("an element of grad_to_none", tensor, torch.Tensor, "a tensor")
    return tensors


def candidates_of(given: object) -> list[Candidate]:
    """Return the candidates of a mapping by name, or of a sequence, each with a distinct name.

    Raises:
        TypeError: for another type, or for an element that is not callable.
        ValueError: for an empty name.
    """
    if isinstance(given, Mapping):
        require("" not in given, "each candidate must have a name, got the name ''")
        for name in given:
            check_type("a measurement's name", name, str, "a string")
        return [_candidate(fn, name) for name, fn in given.items()]
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        candidates: list[Candidate] = []
        for fn in given:
            candidate = _candidate(fn)
            taken = [other.name for other in candidates]
            candidates.append(candidate.but(name=distinct(candidate.name, taken)))
        return candidates
    raise TypeError(
        "compare takes callables or Candidates, in a mapping by name or in a sequence, got "
        f"{type(given).__name__}"
    )


def _candidate(fn: Any, name: str | None = None) -> Candidate:
    return fn.named(name) if isinstance(fn, Candidate) else Candidate(fn, name=name)


def distinct(name: str, taken: Iterable[str]) -> str:
    """Return the name, followed by a number if it is already taken."""
    taken = set(taken)
    numbered = itertools.chain([name], (f"{name} {number}" for number in itertools.count(2)))
    return next(each for each in numbered if each not in taken)


def name_of(fn: Callable[..., object]) -> str:
    """Name of a callable, or of its type if it has no name (modules, partials)."""
    if isinstance(fn, functools.partial):
        return name_of(fn.func)
    name = getattr(fn, "__name__", None)  # proxies may return anything
    return name if isinstance(name, str) else type(fn).__name__


def clearing_gradients(candidate: Candidate) -> Candidate:
    """Return the candidate that also clears, before each call, ``grad_to_none``."""
    if not candidate.grad_to_none:
        return candidate

    def before() -> None:
        clear_gradients(candidate.grad_to_none)
        if candidate.before is not None:
            candidate.before()

    return candidate.but(before=before, grad_to_none=())


def timed_part(candidate: Candidate, last: LastPass | None = None) -> Candidate:
    """Return the candidate whose whole call is timed, with its preparation in ``before``."""
    candidate = clearing_gradients(candidate)
    return backward_of(candidate, last) if candidate.backward else candidate


@dataclasses.dataclass
class LastPass:
    """Tensors of the last backward pass; copies of a candidate share one, and its memory.

    Attributes:
        leaves: leaf tensors that received its gradients.
        outputs: outputs of the forward pass before it.
        gradients: gradients of these outputs.
    """

    leaves: list[torch.Tensor] = dataclasses.field(default_factory=list)
    outputs: list[torch.Tensor] = dataclasses.field(default_factory=list)
    gradients: list[torch.Tensor] = dataclasses.field(default_factory=list)


def backward_of(candidate: Candidate, last: LastPass | None = None) -> Candidate:
    """Return the candidate's backward pass alone, with the forward pass before each call."""
    backward = _Backward(candidate, last or LastPass())
    return Candidate(backward, name=candidate.name, before=backward.run_forward)


class _Backward:
    def __init__(self, forward: Candidate, last: LastPass) -> None:
        self._forward = forward
        self._last = last

    def run_forward(self) -> None:
        if torch.is_inference_mode_enabled():
            raise ValueError(
                f"backward=True needs autograd, which torch.inference_mode() turns off for "
                f"{self._forward.name!r}; time it outside of that mode"
            )
        if self._forward.before is not None:
            self._forward.before()
        with torch.enable_grad():
            result = self._forward.fn(*self._forward.args, **self._forward.kwargs)
        last = self._last
        last.outputs = differentiable(result)
        if not last.outputs:
            refuse_deferred_result(result, self._forward.name)
            raise ValueError(
                f"backward=True needs a result that requires grad, got one that does not from "
                f"{self._forward.name!r}; set requires_grad on an input"
            )
        self._refuse_special(last.outputs)
        if [gradient.shape for gradient in last.gradients] != [
            output.shape for output in last.outputs
        ]:
            # Random, because the time of some kernels depends on the values.
            last.gradients = [torch.randn_like(output) for output in last.outputs]
        # The leaves that a call uses may vary (a mixture of experts). Those of the previous call
        # have gradients, and those of this call may have gradients from elsewhere.
        clear_gradients(last.leaves)
        last.leaves = list(_leaves_of(last.outputs))
        clear_gradients(last.leaves)

    def _refuse_special(self, outputs: Iterable[torch.Tensor]) -> None:
        for output in outputs:
            ragged = output.is_nested and output.layout == torch.strided
            if ragged or output.layout == torch.sparse_coo:
                kind = "nested" if ragged else "sparse COO"
                raise ValueError(
                    f"backward=True gives each result a random gradient, which PyTorch does not "
                    f"make for the {kind} tensor that {self._forward.name!r} returns; return a "
                    "dense tensor"
                )

    def __call__(self) -> None:
        torch.autograd.backward(self._last.outputs, self._last.gradients)


def differentiable(result: object) -> list[torch.Tensor]:
    """Return the tensors of a call's result that require gradients, however nested.

    Raises:
        ValueError: for a result that contains itself.
    """
    try:
        leaves = pytree.tree_leaves(result)
    except RecursionError:
        raise ValueError(
            f"a result must not contain itself if its gradients are needed, got a "
            f"{type(result).__name__} that does; return only its tensors"
        ) from None
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def gradients_of(result: object) -> dict[torch.Tensor, torch.Tensor]:
    """Return the gradients that a backward pass of a call's result adds, by leaf tensor.

    The gradients of the result are random numbers, the same at each call.
    """
    outputs = differentiable(result)
    leaves = list(_leaves_of(outputs))
    given = [
        torch.empty_like(output).normal_(generator=torch.Generator(output.device).manual_seed(0))
        for output in outputs
    ]
    gradients = torch.autograd.grad(outputs, leaves, given, allow_unused=True)
    return {
        leaf: gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
        if gradient is not None
    }


def _leaves_of(outputs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors whose gradients a backward pass of the outputs adds to."""
    pending: list[torch.autograd.graph.Node | None] = [
        output.grad_fn
        if output.grad_fn is not None
        else torch.autograd.graph.get_gradient_edge(output).node
        for output in outputs
    ]
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        pending.extend(following for following, _ in node.next_functions)


def clear_gradients(tensors: Iterable[torch.Tensor]) -> None:
    """Set the gradient of each tensor to None."""
    for tensor in tensors:
        tensor.grad = None


_CALL = CallOptions.__annotations__


def with_keywords(keywords: type) -> Callable[[Function], Function]:
    """Give a function that takes ``**options`` their names and defaults, for help and completion.

    Args:
        keywords: the TypedDict of the options.
    """
    hints = get_type_hints(Candidate.__init__) | get_type_hints(Options)
    defaults = {
        name: parameter.replace(annotation=hints[name])
        for owner in (Candidate, Options)
        for name, parameter in inspect.signature(owner).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }

    def wrap(function: Function) -> Function:
        own = inspect.signature(function)
        parameters = [
            parameter
            for parameter in own.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters += [
            parameter
            for name, parameter in defaults.items()
            if name in keywords.__annotations__ and name not in own.parameters
        ]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return wrap


def candidate_and_options(
    function: str, keywords: type, fn: Any, args: tuple[Any, ...], given: Mapping[str, Any]
) -> tuple[Candidate, Options]:
    """Return the candidate and the options that a function was called with.

    Args:
        function: name of the function, for messages.
        keywords: the TypedDict of its keywords.
        fn: a callable, or a Candidate, which has its arguments and is passed nothing else.
        args: positional arguments of the callable.
        given: keywords: those of a call, and options.

    Raises:
        TypeError: a Candidate is passed with arguments, and as :class:`Candidate` and
            :func:`options_of`.
        ValueError: as :class:`Candidate` and :class:`Options`.
    """
    of_call = {name: value for name, value in given.items() if name in _CALL}
    options = {name: value for name, value in given.items() if name not in _CALL}
    if isinstance(fn, Candidate):
        name = of_call.pop("name", None)
        passed = [*(["arguments"] if args else []), *of_call]
        if passed:
            raise TypeError(
                f"{function} got the Candidate {fn.name!r} and {', '.join(passed)}; pass these to "
                "the Candidate"
            )
        candidate = fn.named(name)
    else:
        candidate = Candidate(fn, *args, **of_call)
    return candidate, options_of(function, keywords, options)

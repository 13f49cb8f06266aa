"""Statements as text, made into what is timed: a function that finds its variables in a namespace.

A function of its own, with its variables as globals, so that they are found by whatever asks which
tensors a call uses, and copies of it can be given others.
"""

from __future__ import annotations

import ast
import symtable
import textwrap
import types
from typing import Any

from convtime.core.errors import InputError, first_line

# What a traceback has for the file of a snippet, before the snippet in words.
_FILE = "<convtime: "


def run(code: str, namespace: dict[str, Any], *, what: str) -> None:
    """Runs statements once, which leave their variables in a namespace.

    Args:
        code: the statements.
        namespace: what they find, and leave.
        what: what errors call them, such as ``the setup``.

    Raises:
        InputError: for what is not Python. Whatever the statements raise passes through.
    """
    exec(_compiled(_parsed(_dedented(code), what), what), namespace)  # noqa: S102  # user's own


def function_of(code: str, namespace: dict[str, Any], *, what: str) -> types.FunctionType:
    """Statements as a function without arguments; it returns what the last one evaluates to.

    As in a loop of Python's ``timeit``, they may give variables of the namespace other values,
    which the next call then finds. All else that they assign to is the call's own.

    Args:
        code: the statements.
        namespace: with what was set up for them.
        what: what errors call them, such as ``the statement``.

    Raises:
        InputError: for what is not Python, and for no statement at all.
    """
    code = _dedented(code)
    body = _parsed(code, what).body
    if not body:
        raise InputError(f"{what} is empty; give Python code, such as 'torch.relu(x)'")
    _compiled(ast.Module(body, []), what)  # refuses what only a function may do, such as return
    last = body[-1]
    if isinstance(last, ast.Expr):
        body[-1] = ast.copy_location(ast.Return(last.value), last)
    rebound = sorted(_assigned(code) & set(namespace))
    if rebound:
        body.insert(0, ast.Global(rebound))
    module = ast.parse("def statements(): pass")
    module.body[0].body = body  # type: ignore[attr-defined]
    made: dict[str, Any] = {}
    exec(_compiled(ast.fix_missing_locations(module), what), made)  # noqa: S102  # only defines it
    name = "; ".join(filter(None, map(str.strip, code.splitlines())))
    return types.FunctionType(made["statements"].__code__, namespace, name)


def names_in(code: str, *, what: str) -> set[str]:
    """All names that statements refer to.

    Raises:
        InputError: for what is not Python.
    """
    nodes = ast.walk(_parsed(_dedented(code), what))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def raised_by(error: BaseException) -> str:
    """What a snippet raised, as a sentence with its line; empty where none did."""
    where = ""
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file.startswith(_FILE):
            where = f"line {traceback.tb_lineno} of {file.removeprefix(_FILE)[:-1]}"
        traceback = traceback.tb_next
    return where and f"{where} raised {first_line(error)}"


def _dedented(code: str) -> str:
    return textwrap.dedent(code).strip("\n")


def _parsed(code: str, what: str) -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError) as error:  # the latter for a null byte, before Python 3.12
        raise _not_python(error, what) from error


def _compiled(module: ast.Module, what: str) -> types.CodeType:
    try:
        return compile(module, f"{_FILE}{what}>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _not_python(error, what) from error


def _not_python(error: SyntaxError | ValueError, what: str) -> InputError:
    if not isinstance(error, SyntaxError):
        return InputError(f"{what} is not Python ({error})")
    text = f": {error.text.strip()}" if error.text else ""
    return InputError(f"line {error.lineno or 1} of {what} is not Python ({error.msg}){text}")


def _assigned(code: str) -> set[str]:
    """The names that statements give values to, those in functions of their own left out."""
    symbols = symtable.symtable(code, "", "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}

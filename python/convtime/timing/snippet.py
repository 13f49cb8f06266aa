"""Compile source code into a function to time, which finds its variables in a namespace.

The variables are globals of a dedicated function. So the search for the tensors of a call finds
them, and a copy of the function can have other values.
"""

from __future__ import annotations

import ast
import symtable
import textwrap
import types
from typing import Any

from convtime.core.checks import require
from convtime.core.errors import InputError, first_line

# Prefix of a snippet's file name in tracebacks; a description of the snippet follows.
_FILE = "<convtime: "


def run(code: str, namespace: dict[str, Any], *, what: str) -> None:
    """Run statements once; they leave their variables in a namespace.

    Args:
        code: the statements.
        namespace: variables before and after the statements.
        what: name of the code in error messages, such as ``the setup``.

    Raises:
        InputError: if the code is not valid Python. Exceptions of the statements pass through.
    """
    exec(_compiled(_parsed(_dedented(code), what), what), namespace)  # noqa: S102  # user's own


def function_of(code: str, namespace: dict[str, Any], *, what: str) -> types.FunctionType:
    """Compile statements into a function without arguments that returns the last one's value.

    As in the loop of Python's ``timeit``, the statements may assign to variables of the namespace,
    and the next call uses the new values. Other assigned variables are local to the call.

    Args:
        code: the statements.
        namespace: variables that were set up for them.
        what: name of the code in error messages, such as ``the statement``.

    Raises:
        InputError: if the code is not valid Python, or is empty.
    """
    code = _dedented(code)
    body = _parsed(code, what).body
    require(body, f"{what} is empty; give Python code, such as 'torch.relu(x)'")
    _compiled(ast.Module(body, []), what)  # refuses statements only valid in functions: return
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
    """Return all names that statements refer to.

    Raises:
        InputError: if the code is not valid Python.
    """
    nodes = ast.walk(_parsed(_dedented(code), what))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def raised_by(error: BaseException) -> str:
    """Describe the exception of a snippet with its line; empty if no snippet raised it."""
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
        return InputError(f"{what} is not valid Python ({error})")
    text = f": {error.text.strip()}" if error.text else ""
    return InputError(f"line {error.lineno or 1} of {what} is not valid Python ({error.msg}){text}")


def _assigned(code: str) -> set[str]:
    """Return the names that statements assign to, except inside nested functions."""
    symbols = symtable.symtable(code, "", "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}

"""Short, readable names of kernels."""

from __future__ import annotations

import re

# Templates that are identified by their argument, not by their name.
_WRAPPERS = re.compile(r"Kernel2?|(unrolled_|vectorized_)?elementwise_kernel(_with_index)?")
_FUNCTOR = re.compile(r"\b\w*(?:Functor\w*|_kernel_cuda|_functor)\b")
_TOO_GENERAL = re.compile(r"kernel(_helper_stage_\d+)?|Kernel2?")
# The rest of a cuDNN or cuBLAS kernel's name after its tile size.
_BEHIND_THE_TILE = re.compile(r"(_tile(?:size)?\d+x[\dx]+).*")
_MANGLED_NAME = re.compile(r"([1-9]\d{0,3})([A-Za-z_])")


def shorten(name: str) -> str:
    """Return a kernel's name without return type, namespaces, arguments and suffix after its tile.

    A kernel that has no such short name keeps its full name.
    """
    if name.startswith("_ZN"):
        return _short_mangled_name(name)
    function, arguments = _split(name.replace("(anonymous namespace)::", ""))
    scope, _, base = function.rpartition(" ")[2].rpartition("::")
    if _WRAPPERS.fullmatch(base) and arguments:
        functor = _FUNCTOR.search(arguments)
        inner = functor[0] if functor else _split(arguments)[0].rpartition("::")[2]
        if base.startswith("Kernel"):
            return inner or base
        return f"{base}, {inner}" if functor else base
    if _TOO_GENERAL.fullmatch(base) and scope:
        base = f"{scope.rpartition('::')[2]}::{base}"
    return _BEHIND_THE_TILE.sub(r"\1", base) or name


def _split(name: str) -> tuple[str, str]:
    """Split off the template arguments from a function's qualified name with its return type."""
    depth = 0
    outside: list[str] = []
    inside: list[str] = []
    for character in name:
        if depth == 0 and character in "(,":
            break
        depth -= character == ">"
        (inside if depth else outside).append("" if character in "<>" and not depth else character)
        depth += character == "<"
    return "".join(outside), "".join(inside)


def _short_mangled_name(name: str) -> str:
    """Return the template argument of a mangled wrapper (cutlass::Kernel<…>), or else its name."""
    found, place = [], 0
    while match := _MANGLED_NAME.search(name, place):
        place = match.start(2) + int(match[1])
        found.append(name[match.start(2) : place])
    if "Kernel" in found:
        found = [part for part in found[found.index("Kernel") + 1 :] if part[0].isupper()]
        return found[0] if found else "Kernel"
    return max(found, key=len, default=name)

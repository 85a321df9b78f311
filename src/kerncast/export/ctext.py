"""Writing C: names, strings, arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kerncast.expr.to_c import c_number

KEYWORDS = frozenset(
    [
        "auto",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "default",
        "do",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "while",
        "bool",
        "true",
        "false",
        "class",
        "namespace",
        "template",
        "typename",
        "operator",
        "new",
        "delete",
        "this",
        "public",
        "private",
        "protected",
        "virtual",
        "friend",
        "using",
        "try",
        "catch",
        "throw",
        "explicit",
        "export",
        "mutable",
        "alignas",
        "alignof",
        "asm",
        "constexpr",
        "decltype",
        "noexcept",
        "nullptr",
        "and",
        "or",
        "not",
        "xor",
    ]
)


def identifier(name: str) -> str:
    """A parameter's name as C and C++ accept it."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    text = f"_{text}" if text[:1].isdigit() else text
    return f"{text}_" if text in KEYWORDS or not text else text


def c_string(text: str) -> str:
    """A string literal; what is not plain ASCII is written byte by byte (octal, which cannot swallow what follows)."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode("utf-8")
    )
    return f'"{escaped}"'


def c_integer(value: int) -> str:
    """A 64-bit literal; the lowest one cannot be written as such."""
    if value >= 2**63:
        return f"UINT64_C({value})"
    return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})" if abs(value) >= 2**31 else str(value)


def integer_type(values: Iterable[int], *, unsigned: bool = False) -> tuple[str, int, int]:
    """The smallest type that holds the values, with its lowest and highest number (the lowest stays free)."""
    known = list(values)
    low, high = min(known, default=0), max(known, default=0)
    for bits in (8, 16, 32, 64):
        if unsigned and low >= 0 and high < 2**bits:
            return f"uint{bits}_t", 0, 2**bits - 1
        if not unsigned and -(2 ** (bits - 1)) < low and high < 2 ** (bits - 1):
            return f"int{bits}_t", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    raise AssertionError(f"{low} to {high} need more than 64 bits")


def array(kind: str, name: str, values: Sequence[int] | npt.NDArray[np.generic], per_line: int = 16) -> str:
    """A constant array; an empty one gets a zero, for C has no empty arrays."""
    numbers = values.tolist() if isinstance(values, np.ndarray) else list(values)
    texts = [c_number(item) if kind == "double" else c_integer(item) for item in numbers] or ["0"]
    width = 6 if kind == "double" else per_line
    lines = ",\n    ".join(", ".join(texts[i : i + width]) for i in range(0, len(texts), width))
    return f"static const {kind} {name}[{len(texts)}] = {{\n    {lines}\n}};\n"


def define(**values: int | str) -> str:
    """`#define` lines."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Text with some prefixes of identifiers replaced."""
    for old, new in names.items():
        text = re.sub(rf"\b{old}", new, text)
    return text

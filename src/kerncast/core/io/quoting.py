"""Text quoted for Markdown, TOML, Python and a shell: each function's result holds any text and nothing else."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Ints
from kerncast.core.io.terminal import line
from kerncast.errors import InvalidValue

# What can begin a span, an element, a link or a cell. One underscore between two letters cannot.
_SPECIAL = re.compile(r"[\\`*<>&\[\]|~]|(?<![^\W_])_|_(?![^\W_])")


def markdown_text(value: object) -> str:
    """Text within a paragraph, a heading or a cell: one line, with no markup of its own."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", line(value))


def markdown_code(value: object) -> str:
    """A code span, also within a cell."""
    plain = line(value).replace("|", "\\|") or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}{plain}{fence}" if len(fence) == 1 else f"{fence} {plain} {fence}"


_TOML_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_string(text: str) -> str:
    """A basic string, also as a key; what a terminal would not show as it is has its code."""
    return '"' + "".join(_TOML_ESCAPES.get(char) or (char if char.isprintable() else _toml_code(char)) for char in text) + '"'


def _toml_code(char: str) -> str:
    number = ord(char)
    if 0xD800 <= number < 0xE000:  # half of a character, which no TOML has
        number = 0xFFFD
    return f"\\u{number:04X}" if number < 0x10000 else f"\\U{number:08X}"


def toml_table(values: Mapping[str, str]) -> str:
    """A table of strings in one line."""
    return "{ " + ", ".join(f"{toml_string(key)} = {toml_string(value)}" for key, value in values.items()) + " }"


def toml_value(given: str | bool | int | Sequence[Any] | Mapping[str, Any]) -> str:
    """Text, a flag, a number, a list of such, or a table of such in one line."""
    if isinstance(given, str):
        return toml_string(given)
    if isinstance(given, bool | int):
        return str(given).lower()
    if isinstance(given, Mapping):
        return "{ " + ", ".join(f"{toml_key(name)} = {toml_value(item)}" for name, item in given.items()) + " }"
    return f"[{', '.join(map(toml_value, given))}]"


def toml_key(name: str) -> str:
    """A key: as it is where TOML allows that."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name, re.ASCII) else toml_string(name)


def toml_comment(text: object) -> str:
    """A comment: one line."""
    return f"# {line(text)}"


def python_literal(value: str | int | float | bool) -> str:
    """A value as source code. Only ASCII: what is not is written by its code, so no editor shows it as something else."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(f"a number in generated Python must be finite, got {value}")
    if not isinstance(value, str | int | float):
        raise InvalidValue(f"only texts, numbers and flags are written as Python, got {type(value).__name__}")
    # Subclasses may have a repr of their own.
    plain = next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    return ascii(plain)


def python_comment(text: object) -> str:
    """A comment: one line, only ASCII."""
    return f"# {line(text).encode('ascii', 'backslashreplace').decode()}"


def word(text: object) -> str:
    """One word of a command; a text with control characters is written with their codes (`$'…'`, as bash and zsh read it)."""
    plain = str(text)
    if plain.isprintable():
        return shlex.quote(plain)
    return "$'" + "".join(_shell_code(char) for char in plain) + "'"


def _shell_code(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    # Half of a character stands for a byte of a path that is not UTF-8.
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", errors))


# Keywords of C and C++, and macros that common headers or compilers define.
# fmt: off
KEYWORDS = frozenset([
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof", "static",
    "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "bool", "true", "false", "class",
    "namespace", "template", "typename", "operator", "new", "delete", "this", "public", "private", "protected", "virtual",
    "friend", "using", "try", "catch", "throw", "explicit", "export", "mutable", "alignas", "alignof", "asm", "constexpr",
    "decltype", "noexcept", "nullptr", "and", "or", "not", "xor", "NULL", "static_assert", "thread_local", "wchar_t",
    "char16_t", "char32_t", "const_cast", "dynamic_cast", "reinterpret_cast", "static_cast", "typeid", "and_eq", "or_eq",
    "not_eq", "xor_eq", "bitand", "bitor", "compl", "linux", "unix", "i386", "errno", "assert",
])
# fmt: on
# Long enough for readers; C99 only distinguishes the first 63 characters of a name.
LONGEST_NAME = 60
LONGEST_COMMENT = 300
# Odd numbers that make a change of one field of a struct differ from the same change of another.
FIELD_FACTORS = (1, 65_537, 4_294_967_311)


def identifier(name: str) -> str:
    """A name as C and C++ accept it; two names may become the same one (`identifiers` tells them apart)."""
    text = re.sub(r"\W", "_", name[:LONGEST_NAME], flags=re.ASCII)
    text = f"_{text}" if text[:1].isdigit() else text
    return f"{text}_" if text in KEYWORDS or not text else text


def identifiers(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """A different C name for each of `names`, in their order, and none of those `taken`."""
    used = set(taken)
    found = []
    for name in names:
        first = own = identifier(name)
        number = 2
        while own in used:
            own, number = f"{first}_{number}", number + 1
        used.add(own)
        found.append(own)
    return found


def comment(text: str) -> str:
    """Text inside `/* */` or after `//`: one line that cannot end the comment, with no backslash to join the next line."""
    cut = text if len(text) <= LONGEST_COMMENT else f"{text[:LONGEST_COMMENT]} …"
    kept = "".join(char if char.isprintable() and char != "\\" else "_" for char in cut)
    # Two question marks may begin a trigraph, and one of those is a backslash.
    return re.sub(r"\?(?=\?)", "? ", re.sub(r"\*(?=/)", "* ", re.sub(r"/(?=\*)", "/ ", kept)))


def c_string(text: str) -> str:
    """A string literal; what is not plain ASCII is written byte by byte (octal, which cannot swallow what follows)."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode("utf-8")
    )
    return f'"{escaped}"'


def c_number(value: float) -> str:
    """A double as a hexadecimal literal, which C99 reads back exactly."""
    mantissa, power = value.hex().split("p")
    text = f"{mantissa.rstrip('0').rstrip('.')}p{power}" if "." in mantissa else value.hex()
    return f"({text})" if value < 0 else text


def c_integer(value: int) -> str:
    """A 64-bit literal; C has none for the lowest value, so that is a macro."""
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
    """A constant array; an empty one gets a zero, because C has no empty arrays."""
    numbers = values.tolist() if isinstance(values, np.ndarray) else list(values)
    texts = [c_number(item) if kind == "double" else c_integer(item) for item in numbers] or ["0"]
    width = 6 if kind == "double" else per_line
    lines = ",\n    ".join(", ".join(texts[i : i + width]) for i in range(0, len(texts), width))
    return f"static const {kind} {name}[{len(texts)}] = {{\n    {lines}\n}};\n"


def define(**values: int | str) -> str:
    """`#define` lines."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def with_prefix(text: str, prefix: str) -> str:
    """Rename the interface to another prefix. Only for packaged text, because it would change words of data too."""
    if prefix == "kerncast":
        return text
    return re.sub(r"\bKERNCAST_(?!H_)", f"{prefix.upper()}_", re.sub(r"\bkerncast_", f"{prefix}_", text))


def filled(template: str, prefix: str, **blocks: str) -> str:
    """A packaged text under `prefix`, its `@BLOCKS@` filled in once: nothing inside a block is replaced again."""
    known = {"prefix": prefix, "upper": prefix.upper(), **blocks}
    return re.sub(r"@([A-Z_]+)@", lambda found: known[found[1].lower()], with_prefix(template, prefix))


def plain_words(text: str) -> str:
    """Text for a CMake or pkg-config file: one line of letters, digits and a little punctuation, everything else `_`."""
    return re.sub(r"[^A-Za-z0-9 _./:+-]", "_", text[:LONGEST_COMMENT])


@cache
def packaged_c(package: str, name: str) -> str:
    """The text of a C file that a package ships in its folder `c/`."""
    return resources.files(package).joinpath("c", name).read_text(encoding="utf-8")


class Sealed:
    """Writes constant arrays and keeps a checksum of them: the sum of each number times its (odd) position.

    It detects a flipped bit and a swapped pair.
    """

    def __init__(self) -> None:
        self._total = 0
        self._lines: list[str] = []

    def array(self, kind: str, name: str, values: npt.NDArray[np.generic]) -> str:
        """A constant array of numbers."""
        flat = np.asarray(values).ravel() if values.size else np.zeros(1, np.int64)
        bits = flat.astype(np.float64).view(np.uint64) if kind == "double" else flat.astype(np.int64).view(np.uint64)
        self._add(name, bits, f"kc_bits({name}[i])" if kind == "double" else f"(uint64_t)(int64_t){name}[i]")
        return array(kind, name, values)

    def triples(self, kind: str, name: str, fields: tuple[str, str, str], values: Ints) -> str:
        """A constant array of structs of three whole numbers."""
        rows = values if len(values) else np.zeros((1, 3), np.int64)
        numbers = np.ascontiguousarray(rows).view(np.uint64).reshape(-1, 3)
        with np.errstate(over="ignore"):
            mixed = (numbers * np.array(FIELD_FACTORS, np.uint64)).sum(axis=1, dtype=np.uint64)
        reads = [
            f"(uint64_t)(int64_t){name}[i].{field} * UINT64_C({factor})"
            for field, factor in zip(fields, FIELD_FACTORS, strict=True)
        ]
        self._add(name, mixed, " + ".join(reads))
        texts = [f"{{{a}, {b}, {c}}}" for a, b, c in rows.tolist()]
        body = ",\n    ".join(", ".join(texts[i : i + 8]) for i in range(0, len(texts), 8))
        return f"static const {kind} {name}[{len(texts)}] = {{\n    {body}\n}};\n"

    def _add(self, name: str, bits: npt.NDArray[np.uint64], read: str) -> None:
        places = np.arange(len(bits), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        with np.errstate(over="ignore"):
            self._total = (self._total * 31 + int((bits * places).sum(dtype=np.uint64))) % 2**64
        self._lines += [
            "    part = 0;",
            f"    for (uint64_t i = 0; i < sizeof {name} / sizeof {name}[0]; i++) part += ({read}) * (2 * i + 1);",
            "    total = total * 31 + part;",
        ]

    @property
    def parts(self) -> str:
        """Statements of C that add up `total`, array by array."""
        return "\n".join(self._lines)

    @property
    def total(self) -> str:
        """The expected total, as a literal."""
        return f"0x{self._total:016x}"

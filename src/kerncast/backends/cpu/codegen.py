"""C source of the micro-kernels: every tile is written out, so no compiler has to guess what stays in registers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

C_TYPES = {"fp32": ("float", 4), "fp64": ("double", 8)}
SIGNATURE = (
    "(int64_t k, const void *a_, int64_t sa, const void *b_, int64_t sb, void *c_, int64_t sc, int64_t add)"  # as micro_fn
)
CACHE_LINE = 64


@dataclass(frozen=True, order=True)
class Packer:
    """Brings strips of `width` rows or columns into k-major order."""

    dtype: str
    width: int

    @property
    def name(self) -> str:
        """What the build cache knows it by."""
        return f"pack_{self.dtype}_{self.width}"

    def symbol(self, rows: bool) -> str:
        """The C function, by how its source is stored."""
        return f"pack_{'rows' if rows else 'kmajor'}_{self.dtype}_{self.width}"

    def source(self) -> str:
        """Its C text."""
        return f"KC_PACKER({self.dtype}, {C_TYPES[self.dtype][0]}, {self.width})\n"


@dataclass(frozen=True, order=True)
class Micro:
    """One tile of C: `mr` rows by `nv` vectors (outer) or by `nv` columns (dot)."""

    kind: str
    dtype: str
    vector_bytes: int
    mr: int
    nv: int
    k_unroll: int
    prefetch: int
    rows: bool
    """A is read by rows where it lies; otherwise it is k-major (packed, or column-major as it is)."""

    @property
    def name(self) -> str:
        """The C function."""
        form = "rows" if self.rows else "kmajor"
        tile = f"{self.mr}x{self.nv}"
        return f"{self.kind}_{self.dtype}_v{self.vector_bytes}_{tile}_u{self.k_unroll}_p{self.prefetch}_{form}"

    @property
    def lanes(self) -> int:
        """Elements of one vector."""
        return self.vector_bytes // C_TYPES[self.dtype][1]

    @property
    def nr(self) -> int:
        """Columns of the tile."""
        return self.nv * (self.lanes if self.kind == "outer" else 1)

    def edge(self, rows: int, columns: int) -> Micro:
        """The kernel for a tile cut to so many rows and columns: itself for a whole tile."""
        vectors = -(-columns * self.nv // self.nr)
        if (rows, vectors) == (self.mr, self.nv):
            return self
        return replace(self, mr=rows, nv=vectors, k_unroll=1, prefetch=0)

    def source(self) -> str:
        """Its C text."""
        return _outer(self) if self.kind == "outer" else _dot(self)


Item = Packer | Micro


def translation_unit(items: Iterable[Item]) -> str:
    """One C file with all of them; `kernels.h` stands beside it."""
    return '#include "kernels.h"\n\n' + "\n".join(item.source() for item in items)


def _row(pointer: str, stride: str, index: int, offset: str) -> str:
    """Row `index` of a strip stored by rows: one pointer serves three rows, so addresses stay in registers."""
    base, step = f"{pointer}{index // 3}", index % 3
    return f"{base}[{offset}]" if step == 0 else f"{base}[{step} * {stride} + {offset}]"


def _row_pointers(pointer: str, stride: str, rows: int) -> list[str]:
    return [f"{pointer}{g}" + (f" = {pointer} + {3 * g} * {stride}" if g else f" = {pointer}") for g in range(-(-rows // 3))]


def _accumulators(kernel: Micro) -> list[str]:
    return [f"c{i}_{j}" for i in range(kernel.mr) for j in range(kernel.nv)]


def _opening(kernel: Micro) -> list[str]:
    scalar = C_TYPES[kernel.dtype][0]
    vector = f"{kernel.dtype}_v{kernel.vector_bytes}"
    lines = [
        f"void {kernel.name}{SIGNATURE} {{",
        f"typedef {scalar} T; typedef {vector} V;",
        "const T *a = a_, *b = b_; T *c = c_;",
    ]
    if kernel.rows:
        lines.append(f"const T {', '.join(f'*{text}' for text in _row_pointers('a', 'sa', kernel.mr))};")
    if kernel.prefetch:
        lines += [f"__builtin_prefetch(c + {i} * sc, 1);" for i in range(kernel.mr)]
    lines += [f"V {name} = {{0}};" for name in _accumulators(kernel)]
    return lines


def _advance(pointer: str, rows: int, steps: int) -> list[str]:
    return [f"{pointer}{g} += {steps};" for g in range(-(-rows // 3))]


def _hold(name: str, uses: int) -> str:
    """A vector that is used once may stay in memory, as an operand of its product."""
    return f" KC_HOLD({name})" if uses > 1 else ""


def _add(total: str, x: str, y: str, uses_of_y: int) -> str:
    keep = f" KC_KEEP({total}, {x}, {y})" if uses_of_y > 1 else f" KC_HOLD({total})"
    return f"{total} += {x} * {y};{keep}"


def _outer_step(kernel: Micro, u: int) -> list[str]:
    """One rank-one update: a column of A, broadcast, times a row of B; the shorter one is held in registers."""
    lines = ["{"]
    if kernel.prefetch:
        per_line = CACHE_LINE // C_TYPES[kernel.dtype][1]
        ahead = range(-(-kernel.nv * kernel.vector_bytes // CACHE_LINE))
        lines += [f"__builtin_prefetch(b + {kernel.prefetch} * sb + {x * per_line});" for x in ahead]
        if not kernel.rows and u == 0:
            lines.append(f"__builtin_prefetch(a + {kernel.prefetch} * sa);")
    a = [_row("a", "sa", i, str(u)) if kernel.rows else f"a[{i}]" for i in range(kernel.mr)]
    b = [f"*(const V *)(b + {j * kernel.lanes})" for j in range(kernel.nv)]
    # Taking zero away is exact: what remains of it is the broadcast alone.
    if kernel.nv <= kernel.mr:
        lines += [f"V b{j} = {b[j]};" + _hold(f"b{j}", kernel.mr) for j in range(kernel.nv)]
        for i in range(kernel.mr):
            products = [_add(f"c{i}_{j}", "x", f"b{j}", kernel.mr) for j in range(kernel.nv)]
            lines.append(f"{{ V x = {a[i]} - (V){{0}}; KC_HOLD(x) {' '.join(products)} }}")
    else:
        lines += [f"V x{i} = {a[i]} - (V){{0}}; KC_HOLD(x{i})" for i in range(kernel.mr)]
        for j in range(kernel.nv):
            products = [_add(f"c{i}_{j}", f"x{i}", "y", kernel.mr) for i in range(kernel.mr)]
            lines.append(f"{{ V y = {b[j]};{_hold('y', kernel.mr)} {' '.join(products)} }}")
    return [*lines, "b += sb;" if kernel.rows else "b += sb; a += sa;", "}"]


def _outer_steps(kernel: Micro, steps: int) -> list[str]:
    lines = [line for u in range(steps) for line in _outer_step(kernel, u)]
    return lines + (_advance("a", kernel.mr, steps) if kernel.rows else [])


def _outer(kernel: Micro) -> str:
    unroll = kernel.k_unroll
    lines = _opening(kernel)
    if unroll > 1:
        lines += [f"for (int64_t n = k / {unroll}; n > 0; n--) {{", *_outer_steps(kernel, unroll), "}", f"k %= {unroll};"]
    lines += ["for (; k > 0; k--) {", *_outer_steps(kernel, 1), "}"]
    for test, operator in (("if (add) {", "+="), ("} else {", "=")):
        lines.append(test)
        for i in range(kernel.mr):
            for j in range(kernel.nv):
                lines.append(f"*(V *)(c + {i} * sc + {j * kernel.lanes}) {operator} c{i}_{j};")
    return "\n".join([*lines, "}", "}", ""])


def _dot_step(kernel: Micro, u: int) -> list[str]:
    """A vector of each row of A, held, times a vector of each column of B in turn."""
    lines = ["{"]
    offset = u * kernel.lanes
    if kernel.prefetch and offset * C_TYPES[kernel.dtype][1] % CACHE_LINE == 0:
        ahead = str(offset + kernel.prefetch * kernel.lanes)
        lines += [f"__builtin_prefetch(&{_row('b', 'sb', j, ahead)});" for j in range(kernel.nv)]
    for i in range(kernel.mr):
        lines.append(f"V a_{i} = *(const V *)&{_row('a', 'sa', i, str(offset))};" + _hold(f"a_{i}", kernel.nv))
    for j in range(kernel.nv):
        products = [_add(f"c{i}_{j}", f"a_{i}", "y", kernel.mr) for i in range(kernel.mr)]
        loaded = f"V y = *(const V *)&{_row('b', 'sb', j, str(offset))};" + _hold("y", kernel.mr)
        lines.append(f"{{ {loaded} {' '.join(products)} }}")
    return [*lines, "}"]


def _dot_loop(kernel: Micro, steps: int) -> list[str]:
    span = steps * kernel.lanes
    body = [line for u in range(steps) for line in _dot_step(kernel, u)]
    moved = _advance("a", kernel.mr, span) + _advance("b", kernel.nv, span)
    return [f"for (; k >= {span}; k -= {span}) {{", *body, *moved, "}"]


def _dot(kernel: Micro) -> str:
    lines = _opening(kernel)
    lines.append(f"const T {', '.join(f'*{text}' for text in _row_pointers('b', 'sb', kernel.nv))};")
    if kernel.k_unroll > 1:
        lines += _dot_loop(kernel, kernel.k_unroll)
    lines += _dot_loop(kernel, 1)
    lines.append(f"T s[{kernel.mr * kernel.nv}];")
    tail = []
    for at, name in enumerate(_accumulators(kernel)):
        i, j = divmod(at, kernel.nv)
        lines.append(f"s[{at}] = {kernel.dtype}_sum{kernel.vector_bytes}({name});")
        tail.append(f"s[{at}] += {_row('a', 'sa', i, 'q')} * {_row('b', 'sb', j, 'q')};")
    lines += ["for (int64_t q = 0; q < k; q++) {", *tail, "}"]
    for test, operator in (("if (add) {", "+="), ("} else {", "=")):
        lines.append(test)
        lines += [f"c[{at // kernel.nv} * sc + {at % kernel.nv}] {operator} s[{at}];" for at in range(kernel.mr * kernel.nv)]
    return "\n".join([*lines, "}", "}", ""])

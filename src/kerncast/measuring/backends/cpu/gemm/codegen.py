"""C source of the micro-kernels: every tile is written out, so no compiler has to guess what stays in registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kerncast.library.families.gemm_cpu_tiles import FEW_DOTS, FEW_SUMS

C_TYPES = {"fp32": ("float", 4), "fp64": ("double", 8), "bf16": ("uint16_t", 2), "int8": ("int8_t", 1), "int32": ("int32_t", 4)}
# What each dtype of a problem is summed in.
SUMS = {"fp32": "fp32", "fp64": "fp64", "bf16": "fp32", "int8": "int32"}
# Products along K that one lane of a grouped kernel takes at once: 32 bits of either operand, a cell.
CELL = "int32"
GROUPS = {("pairs", "bf16"): 2, ("pairs", "int8"): 2, ("quads", "int8"): 4, ("amx", "bf16"): 2, ("amx", "int8"): 4}
# A tile register is 16 rows of 16 cells.
TILE_ROWS = TILE_CELLS = 16
SIGNATURE = (
    "(int64_t k, const void *a_, int64_t sa, const void *b_, int64_t sb, void *c_, int64_t sc, int64_t add)"  # as micro_fn
)
CACHE_LINE = 64
# Vector registers of any x86-64, and of one with AVX-512.
PINNED, PINNED_WIDE = 16, 32


@dataclass(frozen=True, order=True)
class Packer:
    """Brings strips of `width` rows or columns into k-major order: cells of some form (see packing.h)."""

    form: str
    width: int
    tiles: bool = False
    """K is filled up to whole tile registers."""

    @property
    def name(self) -> str:
        """What the build cache knows it by."""
        return f"pack_{self._label}_{self.width}"

    @property
    def _label(self) -> str:
        return f"{self.form}_tiles" if self.tiles else self.form

    def symbol(self, rows: bool) -> str:
        """The C function, by how its source is stored."""
        return f"pack_{'rows' if rows else 'kmajor'}_{self._label}_{self.width}"

    def source(self) -> str:
        """Its C text."""
        dtype, _, kind = self.form.partition("_")
        source = C_TYPES[dtype][0]
        group = {"pairs": 2, "quads": 4, "unsigned": 4}.get(kind, 1)
        cell = "uint32_t" if group > 1 else C_TYPES[kind if kind in C_TYPES else dtype][0]
        unit = group * (TILE_CELLS if self.tiles else 1)
        return f"KC_PACKER({self._label}, {self.form}, {source}, {cell}, {self.width}, {unit})\n"


@dataclass(frozen=True, order=True)
class Micro:
    """One tile of C: `mr` rows by `nv` vectors (outer and grouped), by `nv` columns (dot), or of tile registers (amx)."""

    kind: str
    dtype: str
    """What is summed, or for grouped kernels what is multiplied."""
    vector_bytes: int
    mr: int
    nv: int
    k_unroll: int
    prefetch: int
    rows: bool
    """A is read by rows where it lies; otherwise it is k-major (packed, or column-major as it is)."""
    a: str = ""
    """The type that A is read in, where it is narrower than what is summed."""
    b: str = ""

    @property
    def name(self) -> str:
        """The C function."""
        form = "rows" if self.rows else "kmajor"
        tile = f"{self.mr}x{self.nv}"
        reads = "".join(f"_{operand}{dtype}" for operand, dtype in (("a", self.a), ("b", self.b)) if dtype)
        return f"{self.kind}_{self.dtype}_v{self.vector_bytes}_{tile}_u{self.k_unroll}_p{self.prefetch}_{form}{reads}"

    @property
    def grouped(self) -> bool:
        """Several steps of K are one product."""
        return (self.kind, self.dtype) in GROUPS

    @property
    def group(self) -> int:
        """Steps of K of one product."""
        return GROUPS.get((self.kind, self.dtype), 1)

    @property
    def k_unit(self) -> int:
        """What packed strips are filled up to along K."""
        return self.group * (TILE_CELLS if self.kind == "amx" else 1)

    @property
    def sums(self) -> str:
        """The type that is summed."""
        return SUMS[self.dtype] if self.grouped else self.dtype

    @property
    def lanes(self) -> int:
        """Sums of one vector."""
        return self.vector_bytes // C_TYPES[self.sums][1]

    @property
    def span(self) -> int:
        """Steps of K of one vector of a dot kernel: int8 is multiplied in pairs."""
        return self.lanes * (2 if self.a == "int8" else 1)

    @property
    def nr(self) -> int:
        """Columns of the tile."""
        return self.nv * (1 if self.kind == "dot" else self.lanes)

    @property
    def registers(self) -> int:
        """Vector registers of a step: the sums, the operand that is held, one to pass the other through."""
        held = self.mr if self.kind == "dot" else min(self.mr, self.nv)
        return self.mr * self.nv + held + 1 + (self.nv + 1 if self.kind == "quads" else 0)

    @property
    def few_chains(self) -> bool:
        """Too few sums to hide the latency of two FMA units (8 or more), and registers enough for as many again."""
        return self.kind not in ("quads", "amx") and self.mr * self.nv <= (FEW_DOTS if self.kind == "dot" else FEW_SUMS)

    @property
    def doubled(self) -> bool:
        """Odd steps of an unrolled loop have sums of their own, added at its end."""
        return self.few_chains and self.k_unroll > 1

    @property
    def row_unit(self) -> int:
        """Rows that are computed together whether they are there or not."""
        return TILE_ROWS if self.kind == "amx" else 1

    @property
    def height(self) -> int:
        """Rows of the tile."""
        return self.mr * self.row_unit

    def edge(self, rows: int, columns: int) -> Micro:
        """The kernel for a tile cut to so many rows and columns: itself for a whole tile."""
        vectors = -(-columns * self.nv // self.nr)
        units = -(-rows // self.row_unit)
        if (units, vectors) == (self.mr, self.nv):
            return self
        cut = replace(self, mr=units, nv=vectors, k_unroll=2, prefetch=0)
        return cut if cut.doubled else replace(cut, k_unroll=1)

    def source(self) -> str:
        """Its C text."""
        return {"dot": _dot, "amx": _amx}.get(self.kind, _outer)(self)


Item = Packer | Micro


def _row(pointer: str, stride: str, index: int, offset: str) -> str:
    """Row `index` of a strip stored by rows: one pointer serves three rows, so addresses stay in registers."""
    base, step = f"{pointer}{index // 3}", index % 3
    return f"{base}[{offset}]" if step == 0 else f"{base}[{step} * {stride} + {offset}]"


def _row_pointers(pointer: str, stride: str, rows: int) -> list[str]:
    return [f"{pointer}{g}" + (f" = {pointer} + {3 * g} * {stride}" if g else f" = {pointer}") for g in range(-(-rows // 3))]


def _accumulators(kernel: Micro) -> list[str]:
    return [f"c{i}_{j}" for i in range(kernel.mr) for j in range(kernel.nv)]


def _pinned(kernel: Micro, at: int, name: str) -> str:
    """The declaration of a sum, with a register of its own where there are enough: gcc would move and spill some."""
    if kernel.registers > PINNED_WIDE:
        return f"V {name}"
    return f"{'KC_PINNED' if kernel.registers <= PINNED else 'KC_PINNED_WIDE'}(V, {name}, {at})"


def _opening(kernel: Micro) -> list[str]:
    """Types: T is summed, V a vector of it, A and B are what operands are read in."""
    read = CELL if kernel.grouped else kernel.dtype
    a, b = C_TYPES[kernel.a or read][0], C_TYPES[kernel.b or read][0]
    lines = [
        f"void {kernel.name}{SIGNATURE} {{",
        f"typedef {C_TYPES[kernel.sums][0]} T; typedef {kernel.sums}_v{kernel.vector_bytes} V; typedef {a} A; typedef {b} B;",
        "const A *a = a_; const B *b = b_; T *c = c_;",
    ]
    if kernel.rows:
        lines.append(f"const A {', '.join(f'*{text}' for text in _row_pointers('a', 'sa', kernel.mr))};")
    if kernel.prefetch:
        lines += [f"__builtin_prefetch(c + {i} * sc, 1);" for i in range(kernel.mr)]
    lines += [f"{_pinned(kernel, at, name)} = {{0}};" for at, name in enumerate(_accumulators(kernel))]
    if kernel.doubled:
        lines += [f"V odd_{name} = {{0}};" for name in _accumulators(kernel)]
    return lines


def _total(kernel: Micro, i: int, j: int, u: int) -> str:
    """Where the product of row i and column j goes at step u of the loop."""
    return f"odd_c{i}_{j}" if kernel.doubled and u % 2 else f"c{i}_{j}"


def _joined(kernel: Micro) -> list[str]:
    return [f"{name} += odd_{name};" for name in _accumulators(kernel)] if kernel.doubled else []


def _advance(pointer: str, rows: int, steps: int) -> list[str]:
    return [f"{pointer}{g} += {steps};" for g in range(-(-rows // 3))]


def _hold(name: str, uses: int) -> str:
    """A vector that is used once may stay in memory, as an operand of its product."""
    return f" KC_HOLD({name})" if uses > 1 else ""


def _add(kernel: Micro, total: str, x: str, y: str) -> str:
    """One product per lane; y is wanted again where there is more than one row."""
    keep = f" KC_KEEP({total}, {x}, {y})" if kernel.mr > 1 else f" KC_HOLD({total})"
    if kernel.kind == "dot" and kernel.a == "int8":
        return f"{total} = pairs_int8_v{kernel.vector_bytes}({total}, {x}, {y});{keep}"
    if kernel.grouped:
        return f"{total} = {kernel.kind}_{kernel.dtype}_v{kernel.vector_bytes}({total}, {x}, {y});{keep}"
    return f"{total} += {x} * {y};{keep}"


def _vector(kernel: Micro, dtype: str, pointer: str) -> str:
    """A vector read from a pointer to elements, widened where they are narrow."""
    if dtype == "int8" and kernel.kind == "dot":
        return f"int8_wide{kernel.vector_bytes}({pointer})"
    if dtype:
        return f"{dtype}_load{kernel.vector_bytes}({pointer})"
    return f"*(const {'VC' if kernel.grouped else 'V'} *)({pointer})"


def _everywhere(kernel: Micro, element: str) -> str:
    """An element of A in every lane. Taking zero away is exact: what remains of it is the broadcast alone."""
    if kernel.a:
        return f"{kernel.a}_all{kernel.vector_bytes}({element})"
    return f"{element} - ({'VC' if kernel.grouped else 'V'}){{0}}"


def _outer_step(kernel: Micro, u: int) -> list[str]:
    """One rank-one update: a column of A, broadcast, times a row of B; the shorter one is held in registers."""
    lines = ["{"]
    if kernel.prefetch:
        size = C_TYPES[kernel.b or (CELL if kernel.grouped else kernel.dtype)][1]
        ahead = range(-(-kernel.nr * size // CACHE_LINE))
        lines += [f"__builtin_prefetch(b + {kernel.prefetch} * sb + {x * CACHE_LINE // size});" for x in ahead]
        if not kernel.rows and u == 0:
            lines.append(f"__builtin_prefetch(a + {kernel.prefetch} * sa);")
    a = [_everywhere(kernel, _row("a", "sa", i, str(u)) if kernel.rows else f"a[{i}]") for i in range(kernel.mr)]
    b = [_vector(kernel, kernel.b, f"b + {j * kernel.lanes}") for j in range(kernel.nv)]
    v = "VC" if kernel.grouped else "V"
    # What was added to A to make it unsigned is summed apart: see _outer.
    extra = [f"z{j} = quads_int8_v{kernel.vector_bytes}(z{j}, ones, {{}}); KC_HOLD(z{j})" for j in range(kernel.nv)]
    extra = extra if kernel.kind == "quads" else [""] * kernel.nv
    if kernel.nv <= kernel.mr:
        lines += [f"{v} b{j} = {b[j]};{_hold(f'b{j}', kernel.mr)} {extra[j].format(f'b{j}')}" for j in range(kernel.nv)]
        for i in range(kernel.mr):
            products = [_add(kernel, _total(kernel, i, j, u), "x", f"b{j}") for j in range(kernel.nv)]
            lines.append(f"{{ {v} x = {a[i]}; KC_HOLD(x) {' '.join(products)} }}")
    else:
        lines += [f"{v} x{i} = {a[i]}; KC_HOLD(x{i})" for i in range(kernel.mr)]
        for j in range(kernel.nv):
            products = [_add(kernel, _total(kernel, i, j, u), f"x{i}", "y") for i in range(kernel.mr)]
            lines.append(f"{{ {v} y = {b[j]};{_hold('y', kernel.mr)} {extra[j].format('y')} {' '.join(products)} }}")
    return [*lines, "b += sb;" if kernel.rows else "b += sb; a += sa;", "}"]


def _outer_steps(kernel: Micro, steps: int) -> list[str]:
    lines = [line for u in range(steps) for line in _outer_step(kernel, u)]
    return lines + (_advance("a", kernel.mr, steps) if kernel.rows else [])


def _outer(kernel: Micro) -> str:
    """Rank-one updates; of quads, A has 128 added to make it unsigned, and 128 times the sums of B are taken away."""
    unroll = kernel.k_unroll
    lines = _opening(kernel)
    if kernel.grouped:
        lines.append(f"typedef {CELL}_v{kernel.vector_bytes} VC;")
    if kernel.kind == "quads":
        lines.append("const VC ones = 0x01010101 - (VC){0};")
        lines += [f"V z{j} = {{0}};" for j in range(kernel.nv)]
    if unroll > 1:
        lines += [f"for (int64_t n = k / {unroll}; n > 0; n--) {{", *_outer_steps(kernel, unroll), "}", f"k %= {unroll};"]
    lines += ["for (; k > 0; k--) {", *_outer_steps(kernel, 1), "}", *_joined(kernel)]
    if kernel.kind == "quads":
        lines += [f"c{i}_{j} -= z{j} << 7;" for i in range(kernel.mr) for j in range(kernel.nv)]
    for test, operator in (("if (add) {", "+="), ("} else {", "=")):
        lines.append(test)
        for i in range(kernel.mr):
            for j in range(kernel.nv):
                lines.append(f"*(V *)(c + {i} * sc + {j * kernel.lanes}) {operator} c{i}_{j};")
    return "\n".join([*lines, "}", "}", ""])


def _dot_step(kernel: Micro, u: int) -> list[str]:
    """A vector of each row of A, held, times a vector of each column of B in turn."""
    lines = ["{"]
    offset, size = u * kernel.span, C_TYPES[kernel.b or kernel.dtype][1]
    if kernel.prefetch and offset * size % CACHE_LINE == 0:
        ahead = str(offset + kernel.prefetch * kernel.span)
        lines += [f"__builtin_prefetch(&{_row('b', 'sb', j, ahead)});" for j in range(kernel.nv)]
    for i in range(kernel.mr):
        loaded = _vector(kernel, kernel.a, "&" + _row("a", "sa", i, str(offset)))
        lines.append(f"V a_{i} = {loaded};{_hold(f'a_{i}', kernel.nv)}")
    for j in range(kernel.nv):
        products = [_add(kernel, _total(kernel, i, j, u), f"a_{i}", "y") for i in range(kernel.mr)]
        loaded = _vector(kernel, kernel.b, "&" + _row("b", "sb", j, str(offset)))
        lines.append(f"{{ V y = {loaded};{_hold('y', kernel.mr)} {' '.join(products)} }}")
    return [*lines, "}"]


def _dot_loop(kernel: Micro, steps: int) -> list[str]:
    span = steps * kernel.span
    body = [line for u in range(steps) for line in _dot_step(kernel, u)]
    moved = _advance("a", kernel.mr, span) + _advance("b", kernel.nv, span)
    return [f"for (; k >= {span}; k -= {span}) {{", *body, *moved, "}"]


def _dot(kernel: Micro) -> str:
    lines = _opening(kernel)
    lines.append(f"const B {', '.join(f'*{text}' for text in _row_pointers('b', 'sb', kernel.nv))};")
    if kernel.k_unroll > 1:
        lines += _dot_loop(kernel, kernel.k_unroll)
    lines += _dot_loop(kernel, 1) + _joined(kernel)
    lines.append(f"T s[{kernel.mr * kernel.nv}];")
    tail = []
    one = f"{kernel.a}_one" if kernel.a else ""
    for at, name in enumerate(_accumulators(kernel)):
        i, j = divmod(at, kernel.nv)
        lines.append(f"s[{at}] = {kernel.dtype}_sum{kernel.vector_bytes}({name});")
        tail.append(f"s[{at}] += {one}({_row('a', 'sa', i, 'q')}) * {one}({_row('b', 'sb', j, 'q')});")
    lines += ["for (int64_t q = 0; q < k; q++) {", *tail, "}"]
    for test, operator in (("if (add) {", "+="), ("} else {", "=")):
        lines.append(test)
        lines += [f"c[{at // kernel.nv} * sc + {at % kernel.nv}] {operator} s[{at}];" for at in range(kernel.mr * kernel.nv)]
    return "\n".join([*lines, "}", "}", ""])


def _amx(kernel: Micro) -> str:
    """Tile registers: mr × nv of C, then the shorter of A and B, held, and one to pass the other through.

    A strip of A has 64 bytes of each row together, one of B is cells as for any grouped kernel.
    """
    mr, nv = kernel.mr, kernel.nv
    held, passed = mr * nv, mr * nv + min(mr, nv)
    multiply = f"KC_TILE_{kernel.dtype.upper()}"
    load_a = [f"KC_TILE_LOAD({{}}, a + {i * TILE_ROWS * CACHE_LINE}, {CACHE_LINE});" for i in range(mr)]
    load_b = [f"KC_TILE_LOAD({{}}, b + {j * CACHE_LINE}, 4 * sb);" for j in range(nv)]
    c = [f"c + {i * TILE_ROWS} * sc + {j * TILE_CELLS}, 4 * sc" for i in range(mr) for j in range(nv)]
    lines = [f"void {kernel.name}{SIGNATURE} {{", "const char *a = a_, *b = b_; int32_t *c = c_;", "if (add) {"]
    lines += [f"KC_TILE_LOAD({t}, {at});" for t, at in enumerate(c)] + ["} else {"]
    lines += [f"KC_TILE_ZERO({t});" for t in range(mr * nv)]
    lines += ["}", f"for (; k > 0; k -= {TILE_CELLS}) {{"]
    few, many = (load_b, load_a) if nv <= mr else (load_a, load_b)
    lines += [text.format(held + x) for x, text in enumerate(few)]
    for y, text in enumerate(many):
        lines.append(text.format(passed))
        for x in range(len(few)):
            if nv <= mr:
                lines.append(f"{multiply}({y * nv + x}, {passed}, {held + x});")
            else:
                lines.append(f"{multiply}({x * nv + y}, {held + x}, {passed});")
    lines += [f"a += {CACHE_LINE} * sa; b += {TILE_CELLS * 4} * sb;", "}"]
    lines += [f"KC_TILE_STORE({t}, {at});" for t, at in enumerate(c)]
    return "\n".join([*lines, "}", ""])

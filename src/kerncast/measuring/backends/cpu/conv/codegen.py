"""C source of the tiles of a convolution: sums over a list of places (taps, rows) and over a depth at each of them.

All have one signature. For each entry e of the lists, operands begin at `a + ao[e]` and `b + bo[e]` and k steps follow:

    rows     C[i, j] += A[i · sa + q] · B[q · sb + j]              j over vectors; A by rows
    columns  C[i, j] += A[q · ka + i] · B[q · sb + j]              j over vectors; A packed
    dot      C[i, j] += Σ A[i · sa + q] · B[j · sb + q]            q over vectors
    lanes    C[i, j] += A[i · sa + q · ka + j] · B[q · sb + j]     j over vectors: a channel meets its own weight
    scaled   C[i, j] += A[i · sa + q · ka + j] · B[q · sb]         j over vectors: pixels of one channel, one weight
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kerncast.measuring.backends.cpu.gemm.codegen import C_TYPES

SIGNATURE = (
    "(int64_t entries, const int64_t *ao, const int64_t *bo, int64_t k, const void *a_, int64_t sa, int64_t ka, "
    "const void *b_, int64_t sb, void *c_, int64_t sc, int64_t add)"  # as tile_fn
)
# Twice as many sums, and what is multiplied, still fit into 16 registers.
FEW_CHAINS = 6


@dataclass(frozen=True, order=True)
class Tile:
    """One tile of the result: `mr` rows by `nv` vectors, of dot by `nv` columns."""

    form: str
    dtype: str
    vector_bytes: int
    mr: int
    nv: int
    k_unroll: int

    @property
    def name(self) -> str:
        """The C function."""
        return f"conv_{self.form}_{self.dtype}_v{self.vector_bytes}_{self.mr}x{self.nv}_u{self.k_unroll}"

    @property
    def lanes(self) -> int:
        """Elements of one vector."""
        return self.vector_bytes // C_TYPES[self.dtype][1]

    def cut(self, rows: int, vectors: int) -> Tile:
        """The tile that is left at an edge: itself where nothing is cut off."""
        if (rows, vectors) == (self.mr, self.nv):
            return self
        cut = replace(self, mr=rows, nv=vectors, k_unroll=2)
        return cut if cut.doubled else replace(cut, k_unroll=1)

    @property
    def doubled(self) -> bool:
        """Odd steps of an unrolled loop have sums of their own: few chains of sums do not hide the latency of a product."""
        return self.k_unroll > 1 and self.mr * self.nv <= FEW_CHAINS

    def source(self) -> str:
        """Its C text."""
        step = self.lanes if self.form == "dot" else 1
        body = [f"for (; n >= {self.k_unroll * step}; n -= {self.k_unroll * step}) {{", *_steps(self, self.k_unroll), "}"]
        if self.k_unroll > 1:
            body += [f"for (; n > 0; n -= {step}) {{", *_steps(self, 1), "}"]
        lines = [
            f"void {self.name}{SIGNATURE} {{",
            f"typedef {C_TYPES[self.dtype][0]} T; typedef {self.dtype}_v{self.vector_bytes} V;",
            "T *c = c_;",
            *(f"V {total} = {{0}};" for total in (*_totals(self), *_odd_totals(self))),
            "int64_t e = 0;",
            *_single_steps(self),
            "for (; e < entries; e++) {",
            _entry("e"),
            "int64_t n = k;",
            *_pointers(self),
            *body,
            "}",
            *(f"{total} += {odd};" for total, odd in zip(_totals(self), _odd_totals(self), strict=False)),
            *_stores(self),
        ]
        return "\n".join([*lines, "}", ""])


def _entry(index: str) -> str:
    return f"const T *a = (const T *)a_ + ao[{index}], *b = (const T *)b_ + bo[{index}];"


def _single_steps(tile: Tile) -> list[str]:
    """Where each entry is one step, as for groups of one channel, entries are what is unrolled."""
    if tile.k_unroll == 1 or tile.form not in ("lanes", "scaled"):
        return []
    lines = [f"if (k == 1) for (; e + {tile.k_unroll} <= entries; e += {tile.k_unroll}) {{"]
    for u in range(tile.k_unroll):
        lines += ["{", _entry(f"e + {u}"), *_pointers(tile), *_lanes(tile, u), "}"]
    return [*lines, "}"]


def _totals(tile: Tile) -> list[str]:
    return [f"c{i}_{j}" for i in range(tile.mr) for j in range(tile.nv)]


def _odd_totals(tile: Tile) -> list[str]:
    return [f"odd_{total}" for total in _totals(tile)] if tile.doubled else []


def _total(tile: Tile, i: int, j: int, u: int) -> str:
    """Where the product of row i and column j goes at step u of the loop."""
    return f"odd_c{i}_{j}" if tile.doubled and u % 2 else f"c{i}_{j}"


def _groups(count: int) -> range:
    """One pointer serves three rows, as an address is base + 0, 1 or 2 strides: so addresses stay in registers."""
    return range(-(-count // 3))


def _row(pointer: str, stride: str, index: int) -> str:
    return f"{pointer}{index // 3}" + (f" + {index % 3} * {stride}" if index % 3 else "")


def _pointers(tile: Tile) -> list[str]:
    """Where rows are apart, their pointers."""
    lines = []
    if tile.form != "columns":
        lines.append("const T " + ", ".join(f"*a{g} = a + {3 * g} * sa" for g in _groups(tile.mr)) + ";")
    if tile.form == "dot":
        lines.append("const T " + ", ".join(f"*b{g} = b + {3 * g} * sb" for g in _groups(tile.nv)) + ";")
    return lines


def _steps(tile: Tile, steps: int) -> list[str]:
    make = {"rows": _outer, "columns": _outer, "dot": _dot}.get(tile.form, _lanes)
    lines = [line for u in range(steps) for line in make(tile, u)]
    if tile.form == "rows":
        lines += [f"a{g} += {steps};" for g in _groups(tile.mr)]
    if tile.form == "dot":
        lines += [f"a{g} += {steps * tile.lanes};" for g in _groups(tile.mr)]
        lines += [f"b{g} += {steps * tile.lanes};" for g in _groups(tile.nv)]
    return lines


def _add(total: str, x: str, y: str) -> str:
    return f"{total} += {x} * {y}; KC_KEEP({total}, {x}, {y})"


def _outer(tile: Tile, u: int) -> list[str]:
    """An element of every row, in all lanes, times a row of vectors; the shorter of both is held in registers."""
    # Taking zero away is exact: what remains of it is the broadcast alone.
    a = [(f"({_row('a', 'sa', i)})[{u}]" if tile.form == "rows" else f"a[{i}]") + " - (V){0}" for i in range(tile.mr)]
    b = [f"*(const V *)(b + {j * tile.lanes})" for j in range(tile.nv)]
    lines = ["{"]
    if tile.nv <= tile.mr:
        lines += [f"V b{j} = {b[j]}; KC_HOLD(b{j})" for j in range(tile.nv)]
        for i in range(tile.mr):
            products = " ".join(_add(_total(tile, i, j, u), "x", f"b{j}") for j in range(tile.nv))
            lines.append(f"{{ V x = {a[i]}; KC_HOLD(x) {products} }}")
    else:
        lines += [f"V x{i} = {a[i]}; KC_HOLD(x{i})" for i in range(tile.mr)]
        for j in range(tile.nv):
            products = " ".join(_add(_total(tile, i, j, u), f"x{i}", "y") for i in range(tile.mr))
            lines.append(f"{{ V y = {b[j]}; KC_HOLD(y) {products} }}")
    return [*lines, "b += sb;" if tile.form == "rows" else "b += sb; a += ka;", "}"]


def _dot(tile: Tile, u: int) -> list[str]:
    """Vectors of rows times vectors of columns; those of the fewer are held, the others pass one by one."""
    a = [f"*(const V *)({_row('a', 'sa', i)} + {u * tile.lanes})" for i in range(tile.mr)]
    b = [f"*(const V *)({_row('b', 'sb', j)} + {u * tile.lanes})" for j in range(tile.nv)]
    by_rows = tile.mr <= tile.nv
    held, passed = (a, b) if by_rows else (b, a)
    lines = ["{", *(f"V x{i} = {text}; KC_HOLD(x{i})" for i, text in enumerate(held))]
    for j, text in enumerate(passed):
        totals = [_total(tile, *((i, j) if by_rows else (j, i)), u) for i in range(len(held))]
        products = " ".join(_add(total, f"x{i}", "y") for i, total in enumerate(totals))
        lines.append(f"{{ V y = {text}; KC_HOLD(y) {products} }}")
    return [*lines, "}"]


def _lanes(tile: Tile, u: int) -> list[str]:
    """Vectors times vectors; weights are held, the other operand may stay in memory."""
    lines = ["{"]
    if tile.form == "scaled":
        lines.append("V w = b[0] - (V){0}; KC_HOLD(w)")
    else:
        lines += [f"V w{j} = *(const V *)(b + {j * tile.lanes}); KC_HOLD(w{j})" for j in range(tile.nv)]
    for i in range(tile.mr):
        for j in range(tile.nv):
            weight = "w" if tile.form == "scaled" else f"w{j}"
            value = f"*(const V *)({_row('a', 'sa', i)} + {j * tile.lanes})"
            total = _total(tile, i, j, u)
            lines.append(f"{total} += {value} * {weight}; KC_HOLD({total})")
    return [*lines, *(f"a{g} += ka;" for g in _groups(tile.mr)), "b += sb;", "}"]


def _stores(tile: Tile) -> list[str]:
    lines = []
    for test, operator in (("if (add) {", "+="), ("} else {", "=")):
        lines.append(test)
        for i in range(tile.mr):
            for j in range(tile.nv):
                if tile.form == "dot":
                    lines.append(f"c[{i} * sc + {j}] {operator} {tile.dtype}_sum{tile.vector_bytes}(c{i}_{j});")
                else:
                    lines.append(f"*(V *)(c + {i} * sc + {j * tile.lanes}) {operator} c{i}_{j};")
    return [*lines, "}"]

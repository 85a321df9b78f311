"""The problem sets of tt-metal's sweeps, generated suite by suite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kerncast.core.arrays import Flags, Ints
from kerncast.core.dtypes import BYTES
from kerncast.core.op import Suite
from kerncast.core.parameters import Value
from kerncast.library.ops.ttnn import INPUT, TILE

if TYPE_CHECKING:
    import polars as pl


Axes = Mapping[str, Sequence[Value]]
MIB = 2**20
L1_CORE = 1_499_136  # bytes of a core's memory, the published limit of each tensor of attention
SEQUENCES = tuple(2**power for power in range(5, 18))
MANY_HEADS = (16, 24, 32, 40, 48, 52, 64, 80, 96, 128)
KV_HEADS = (1, 8, *MANY_HEADS)

CONCATENATE_HEADS: Axes = {
    "batch": (1, 32, 64, 96, 128), "heads": MANY_HEADS, "seq_len": (1, *SEQUENCES), "head_dim": (64, 128),
    "dtype": ("bf16", "bfp8"), "buffer": ("dram", "l1"), "out_buffer": ("dram", "l1"),
}  # fmt: skip
# The largest tensor, in bytes, by how many of input and output are in L1.
CONCATENATE_LIMITS = (168 * MIB, 56 * MIB, 34 * MIB)

CREATE_QKV_HEADS: Axes = {
    "batch": (1, 2, 4, 6, 8), "seq_len": SEQUENCES, "head_dim": (64, 128), "dtype": ("bf16", "bfp8"), "heads": MANY_HEADS,
    "kv_heads": KV_HEADS, "transpose_k": (True, False),
}  # fmt: skip

# Powers of two from 32 on, in tokens.
CHUNKS = tuple(2**power for power in range(5, 13))
PAGED_SHAPES: Axes = {
    "batch": (1, 8, 32), "heads": (16, 24, 32, 40, 48, 52, 64, 128), "kv_heads": KV_HEADS, "block_size": CHUNKS,
    "head_dim": (64, 128), "is_causal": (True, False), "k_chunk": CHUNKS,
}  # fmt: skip
# The published module draws this many of them.
RANDOM_COMBINATIONS = 1_000
PAGED_CHOICES: Axes = {
    "dtype": ("bf16", "bfp8"), "sharding": ("height", "interleaved"), "out_sharding": ("height", "interleaved"),
    "exp_approx": (True, False), "q_chunk": CHUNKS, "program_config": (True, False), "compute_config": (True, False),
    "math_fidelity": ("hifi2",), "math_approx": (True,), "fp32_accumulate": (True,), "packer_l1": (True,),
}  # fmt: skip

RANDOM_SHAPES = 900
# By rank: the largest number of steps along each dimension; the last two are in tiles.
UNARY_SHAPES = {"4dim": (32, 32, 10, 10), "3dim": (128, 28, 28), "2dim": (300, 300)}
UNARY: Axes = {
    "dtype": ("bf16", "bfp8", "fp32", "uint16", "uint32"), "buffer": ("dram", "l1"), "out_buffer": ("dram", "l1"),
    "func": ("exp",),
}  # fmt: skip


def _frame(axes: Axes, given: Axes, start: pl.DataFrame | None = None) -> pl.DataFrame:
    """Every combination, the first axis slowest; `given` replaces the values of an axis."""
    import polars as pl

    frame = start
    for name, values in axes.items():
        column = pl.DataFrame({name: list(given.get(name, values))})
        frame = column if frame is None else frame.join(column, how="cross", maintain_order="left_right")
    assert frame is not None
    return frame


def _others(frame: pl.DataFrame, given: Axes, *own: Axes) -> pl.DataFrame:
    """Axes that are not the sweep's own: the frame is cut down to those that follow from others, and crossed with the rest."""
    import polars as pl

    more = {name: list(values) for name, values in given.items() if not any(name in axes for axes in own)}
    for name in [name for name in more if name in frame.columns]:
        frame = frame.filter(pl.col(name).is_in(more.pop(name)))
    return _frame(more, {}, frame) if more else frame


def _like_the_input(frame: pl.DataFrame, *names: str) -> pl.DataFrame:
    """An output that lies like the input is written in one way."""
    import polars as pl

    for name in names:
        same = pl.col(f"out_{name}") == pl.col(name)
        frame = frame.with_columns(pl.when(same).then(pl.lit(INPUT)).otherwise(f"out_{name}").alias(f"out_{name}"))
    return frame.unique(maintain_order=True)


def _bytes() -> Any:
    """Bytes of an element, without the shared exponents of block formats, as the published limits count them."""
    import polars as pl

    return pl.col("dtype").replace_strict(
        {name: float(int(size) or 0.5) for name, size in BYTES.items()}, return_dtype=pl.Float64
    )


def _in_suites(frame: pl.DataFrame, names: pl.Expr) -> Iterator[Suite]:
    for (name,), rows in (
        frame.with_columns(names.alias("__suite")).partition_by("__suite", maintain_order=True, as_dict=True).items()
    ):
        yield Suite(str(name), rows.drop("__suite"), rows.height)


def concatenate_heads(given: Axes) -> Iterator[Suite]:
    """All heads, lengths and batches whose tensor fits into its memory, a suite for each length."""
    import polars as pl

    frame = _frame(CONCATENATE_HEADS, given)
    size = pl.col("batch") * pl.col("heads") * pl.col("seq_len") * pl.col("head_dim") * _bytes()
    out = pl.when(pl.col("out_buffer") == INPUT).then("buffer").otherwise("out_buffer")
    in_l1 = (pl.col("buffer") == "l1").cast(pl.Int8) + (out == "l1").cast(pl.Int8)
    limit = in_l1.replace_strict(dict(enumerate(CONCATENATE_LIMITS)), return_dtype=pl.Float64)
    kept = _others(_like_the_input(frame.filter(size < limit), "buffer"), given, CONCATENATE_HEADS)
    yield from _in_suites(kept, pl.format("suite_{}", pl.max_horizontal(pl.lit(64), "seq_len")))


def create_qkv_heads(given: Axes) -> Iterator[Suite]:
    """All heads and groups of heads, from shards of blocks to shards of heights, a suite for each length."""
    import polars as pl

    frame = _frame(CREATE_QKV_HEADS, given)
    each = pl.when(pl.col("kv_heads") == 0).then("heads").otherwise("kv_heads")
    whole = (pl.col("heads") % each == 0) & (pl.col("seq_len") % TILE == 0)
    frame = frame.filter(whole).with_columns(((pl.col("heads") + 2 * each) * pl.col("head_dim")).alias("hidden"))
    once = pl.when(pl.col("kv_heads") == pl.col("heads")).then(0).otherwise("kv_heads").alias("kv_heads")
    frame = frame.filter(pl.col("hidden") % TILE == 0).with_columns(once).drop("head_dim").unique(maintain_order=True)
    yield from _in_suites(_others(frame, given, CREATE_QKV_HEADS), pl.format("suite_{}", "seq_len"))


def _attention_shapes(given: Axes) -> pl.DataFrame:
    """Shapes that the published module allows: whole groups of heads, whole chunks, every tensor within a core's memory."""
    import numpy as np
    import polars as pl

    c = pl.col
    frame = _frame(PAGED_SHAPES, given).with_columns((c("block_size") // TILE).alias("pages"), c("batch").alias("blocks"))
    query = c("batch") * c("heads") * c("head_dim")
    keys = c("blocks") * c("kv_heads") * c("block_size") * c("head_dim")
    # Score tiles that are multiplied at once, at most four: their number must be a power of two.
    tiles = pl.min_horizontal(((c("heads") + TILE - 1) // TILE) * (c("k_chunk") // TILE), pl.lit(4))
    mask_len = c("pages") * c("block_size")
    mask_fits = (mask_len % c("k_chunk") == 0) & (2 * c("batch") * c("heads") * mask_len <= L1_CORE)
    frame = frame.filter(
        c("heads") % c("kv_heads") == 0,
        c("pages") >= 1,
        2 * query + 4 * keys <= L1_CORE,
        tiles.is_in([1, 2, 4]) & (c("k_chunk") % TILE == 0),
        c("is_causal") | mask_fits,
    )
    if frame.height > RANDOM_COMBINATIONS:
        drawn = np.random.default_rng(0).permutation(frame.height)[:RANDOM_COMBINATIONS]
        frame = frame[np.sort(drawn)]
    mask = ~c("is_causal")
    return frame.with_columns(mask.alias("mask"), pl.when(mask).then(mask_len).alias("mask_len"), pl.lit(True).alias("cur_pos"))


def paged_sdpa_decode(given: Axes) -> Iterator[Suite]:
    """One step of attention with every choice of memory, chunks and arithmetic, a suite for each batch and number of heads."""
    import polars as pl

    c = pl.col
    shapes = _attention_shapes(given)
    for (batch, heads), some in shapes.partition_by("batch", "heads", maintain_order=True, as_dict=True).items():
        frame = _frame(PAGED_CHOICES, given, some)
        out = pl.when(c("out_sharding") == INPUT).then("sharding").otherwise("out_sharding")
        frame = frame.with_columns(out.alias("out_sharding")).filter(
            (c("batch") == 1) | ((c("dtype") != "bfp8") & (c("out_sharding") != "height")),
            # The module would place the query like the output.
            (c("sharding") != "interleaved") | (c("out_sharding") == "interleaved"),
        )
        buffers = [
            pl.when(c(name) == "interleaved")
            .then(pl.lit("dram"))
            .otherwise(pl.lit("l1"))
            .alias(name.replace("sharding", "buffer"))
            for name in ("sharding", "out_sharding")
        ]
        unused = [pl.when(c("program_config")).then(name).alias(name) for name in ("q_chunk", "k_chunk", "exp_approx")]
        unused += [
            pl.when(c("compute_config")).then(name).alias(name)
            for name in ("math_fidelity", "math_approx", "fp32_accumulate", "packer_l1")
        ]
        kept = _like_the_input(frame.with_columns(*buffers, *unused), "buffer", "sharding")
        yield Suite(f"suite_{batch}_{heads}", _others(kept, given, PAGED_SHAPES, PAGED_CHOICES), kept.height)


def eltwise_unary(given: Axes) -> Iterator[Suite]:
    """Random shapes of two, three and four dimensions, in DRAM and in L1, a suite for each rank."""
    import numpy as np
    import polars as pl

    for name, most in UNARY_SHAPES.items():
        rng = np.random.default_rng(len(most))
        sides = [
            rng.integers(1, limit + 1, RANDOM_SHAPES) * (TILE if len(most) - place <= 2 else 1)
            for place, limit in enumerate(most)
        ]
        sides = [np.ones(RANDOM_SHAPES, np.int64)] * (4 - len(sides)) + sides
        shapes = pl.DataFrame({f"dim{place}": side for place, side in enumerate(sides)}).unique(maintain_order=True)
        dims = {place: values for place, values in given.items() if place in shapes.columns}
        for place, values in dims.items():
            shapes = _frame({place: values}, {}, shapes.drop(place).unique(maintain_order=True))
        frame = _like_the_input(_frame(UNARY, given, shapes), "buffer")
        yield Suite(name, _others(frame, given, UNARY, dims), frame.height)


GRIDS = ("in_x", "in_y", "out_x", "out_y")
SHARDING = ("in_strategy", "out_strategy", "in_orientation", "out_orientation")
LONGEST_SIDE = 249
SUITE_LIMIT = 1_600
# Bytes per core that the published sweep allows the tensor on either side, of the 1,499,136 bytes of L1.
SIDE_BYTES = 2**20
# Bytes that the input and the output shard may take together: above it real cards run out of memory.
BOTH_BYTES = 1_399_000
DEFAULTS: Mapping[str, Sequence[Value]] = {
    "height_tiles": range(1, LONGEST_SIDE + 1),
    "width_tiles": range(1, LONGEST_SIDE + 1),
    **dict.fromkeys(GRIDS, range(1, 9)),
    "in_strategy": ("block", "width", "height"),
    "out_strategy": ("block", "width", "height"),
    "in_orientation": ("row_major",),
    "out_orientation": ("row_major",),
    "dtype": ("bf16",),
}


def divisors(x: int, y: int, strategy: str, orientation: str) -> tuple[int, int]:
    """The numbers of parts into which a sharding cuts the height and the width."""
    if strategy == "block":
        return (x, y) if orientation == "col_major" else (y, x)
    return (x * y, 1) if strategy == "height" else (1, x * y)


def thin(indices: Ints, limit: int = SUITE_LIMIT) -> Ints:
    """Delete every other one, starting with the first, until at most `limit` remain."""
    while len(indices) > limit:
        indices = indices[1::2]
    return indices


@dataclass(frozen=True, eq=False)
class _Shapes:
    """All shapes of a sweep, the height fastest, and which of them a sharding can hold."""

    heights: Ints
    widths: Ints
    masks: dict[tuple[Any, ...], Flags]

    @classmethod
    def of(cls, heights: Sequence[Value], widths: Sequence[Value]) -> _Shapes:
        high, wide = np.array(heights, np.int64), np.array(widths, np.int64)
        return cls(np.tile(high, len(wide)), np.repeat(wide, len(high)), {})

    @cached_property
    def tiles(self) -> Ints:
        """Tiles of each shape."""
        return self.heights * self.widths

    def held(self, x: int, y: int, strategy: str, orientation: str, dtype: str) -> Flags:
        """Which shapes a side can hold: whole tiles on every core, and no more bytes than allowed."""
        rows, columns = divisors(x, y, strategy, orientation)
        cores = x * y
        key = (rows, columns, cores, dtype)
        if key not in self.masks:
            fits = self.tiles * (TILE * TILE * BYTES[dtype]) <= SIDE_BYTES * cores
            self.masks[key] = fits & (self.heights % rows == 0) & (self.widths % columns == 0)
        return self.masks[key]

    def held_together(self, in_cores: int, out_cores: int, dtype: str) -> Flags:
        """Which shapes leave room for both shards on a core."""
        key = ("both", *sorted((in_cores, out_cores)), dtype)
        if key not in self.masks:
            bytes_ = self.tiles * (TILE * TILE * BYTES[dtype])
            self.masks[key] = bytes_ / in_cores + bytes_ / out_cores <= BOTH_BYTES
        return self.masks[key]


def suites(axes: Mapping[str, Sequence[Value]], *, both_fit: bool) -> Iterator[Suite]:
    """A suite for each pair of unequal grids and each dtype that has at least one problem."""
    runs: dict[str, Any] = {name: list(axes.get(name, values)) for name, values in DEFAULTS.items()}
    shapes = _Shapes.of(runs["height_tiles"], runs["width_tiles"])
    # From WIDTH to WIDTH and from HEIGHT to HEIGHT is left out, as published.
    shardings = [
        item for item in itertools.product(*(runs[name] for name in SHARDING)) if item[0] != item[1] or item[0] == "block"
    ]
    for in_x, in_y in itertools.product(runs["in_x"], runs["in_y"]):
        outputs = itertools.product(runs["out_x"], runs["out_y"], runs["dtype"])
        drafts = [
            _draft(shapes, shardings, (in_x, in_y, out_x, out_y), dtype, both_fit)
            for out_x, out_y, dtype in outputs
            if (in_x, in_y) != (out_x, out_y)
        ]
        yield from _suites(shapes, shardings, [draft for draft in drafts if draft.valid])


@dataclass(frozen=True, eq=False)
class _Draft:
    """A suite as positions in the lists of shapes and shardings."""

    grids: tuple[int, int, int, int]
    dtype: str
    valid: int
    shape: Ints
    sharding: Ints


def _draft(
    shapes: _Shapes, shardings: list[tuple[str, ...]], grids: tuple[int, int, int, int], dtype: str, both_fit: bool
) -> _Draft:
    in_x, in_y, out_x, out_y = grids
    found = []
    for from_strategy, to_strategy, from_orientation, to_orientation in shardings:
        mask = shapes.held(in_x, in_y, from_strategy, from_orientation, dtype)
        mask = mask & shapes.held(out_x, out_y, to_strategy, to_orientation, dtype)
        if both_fit:
            mask &= shapes.held_together(in_x * in_y, out_x * out_y, dtype)
        found.append(np.flatnonzero(mask))
    valid = sum(map(len, found))
    kept = thin(np.arange(valid))
    sharding = np.repeat(np.arange(len(found)), [len(part) for part in found])[kept]
    return _Draft(grids, dtype, valid, np.concatenate([kept[:0], *found])[kept], sharding)


def _suites(shapes: _Shapes, shardings: list[tuple[str, ...]], drafts: list[_Draft]) -> Iterator[Suite]:
    """The drafts as slices of one frame: 4,032 frames would take longer to make than all the arithmetic."""
    # Imported when used: moving shards needs no dataframes.
    import polars as pl

    if not drafts:
        return
    heights = [len(draft.shape) for draft in drafts]
    shape, sharding = (np.concatenate([getattr(draft, name) for draft in drafts]) for name in ("shape", "sharding"))
    numbers = {"height_tiles": shapes.heights[shape], "width_tiles": shapes.widths[shape]}
    for column, name in enumerate(GRIDS):
        numbers[name] = np.repeat(np.array([draft.grids[column] for draft in drafts], np.int64), heights)
    labels = pl.DataFrame(shardings, schema=dict.fromkeys(SHARDING, pl.String), orient="row")[sharding]
    dtypes = pl.Series("dtype", [draft.dtype for draft in drafts]).gather(np.repeat(np.arange(len(drafts)), heights))
    problems = pl.DataFrame(numbers).hstack([*labels.get_columns(), dtypes])
    for draft, start in zip(drafts, np.cumsum([0, *heights[:-1]]), strict=True):
        in_x, in_y, out_x, out_y = draft.grids
        name = f"{in_x}x{in_y}-{out_x}x{out_y}-{draft.dtype}"
        yield Suite(name, problems.slice(int(start), len(draft.shape)), draft.valid)

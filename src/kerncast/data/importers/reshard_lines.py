"""Straight lines fitted to reshards on Wormhole cards: time against tiles, one line for each pair of shardings.

A table with `coef`, `intercept`, `num_points` and the quality of the fit for each group, as published with
https://github.com/tenstorrent/tt-metal/issues/14762. Lines are not measurements: each is evaluated where it was fitted,
at the tile counts of the published sweep that cards have room for. Equal tile counts were averaged before the fit, so
one row stands for all shapes of a tile count, with the shape in the middle of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from kerncast.core.device import Device
from kerncast.core.io.atomic import scratch_folder
from kerncast.core.io.foreign import guarded, gunzip_to
from kerncast.data.importers import Head, Imported, Importer, Options, extra_columns, measured_on
from kerncast.data.skipping import BadRows, Skips
from kerncast.data.text_table import LINE, numbers, read_csv_text, refuse_cells, respelled, whole_numbers
from kerncast.errors import BadFile, InvalidValue
from kerncast.library import devices
from kerncast.library.families.reshard import reshard_single
from kerncast.library.ops.reshard_suites import BOTH_BYTES, GRIDS

GZIP = b"\x1f\x8b"
NEEDED = ("in_grid", "out_grid", "group", "coef", "intercept")
# How good the fit is. Without one of them, lines are judged by the others.
QUALITY = ("r^2", "RMSRE", "num_points")
# Another measure of the fit, which is not used.
IGNORED = ("RRMSE",)
SHARDING = r"ShardStrategy\.(BLOCK|WIDTH|HEIGHT)-ShardOrientation\.ROW_MAJOR"
KEY = [*GRIDS, "in_strategy", "out_strategy"]
# A worse fit says more about what disturbed the measurement than about the cards.
LEAST_R2 = 0.5
MOST_RMSRE = 1.0
# No launch takes less. Below it a line with a negative intercept is far from anything that was measured.
SHORTEST_NS = 1_000.0
TILE_BYTES = 2_048  # the sweep is bf16


class ReshardLines(Importer):
    """CSV tables (.csv, .csv.gz) of fitted lines."""

    name = "reshard-lines"
    doc = "lines fitted to reshards on Wormhole cards (CSV or .csv.gz); `constants` points=12 keeps 12 tile counts per line"

    def recognises(self, head: Head) -> bool:
        return head.header >= {"in_grid", "out_grid", "group", "coef", "intercept"}

    def read(self, path: Path, options: Options) -> Iterator[Imported]:
        most = _points(options)
        cards = measured_on(devices.get("wormhole_b0"), options)
        table = respelled(_text(path, options.skips), (*NEEDED, *QUALITY, *IGNORED))
        missing = [name for name in NEEDED if name not in table.columns]
        if missing:
            raise BadFile(f"line 1: no column '{missing[0]}'; fitted lines have {', '.join((*NEEDED, *QUALITY))}")
        yield options.skips.convert(table, lambda rows: _evaluated(rows, most, cards))


def _evaluated(table: pl.DataFrame, most: int | None, cards: Device) -> Imported:
    """The points of the lines that are good enough."""
    lines = _lines(table)
    good = lines.filter("good")
    points = _tile_counts(good).join(good, on=KEY, how="inner", maintain_order="left")
    found = points.select(KEY).unique().height
    if found < good.height:
        strange = good.join(points, on=KEY, how="anti").sort(LINE)[LINE]
        kind = "the published sweep has no reshard of these grids and strategies"
        raise BadRows(f"line {strange[0]}: {kind}", kind, lines=strange)
    counted = points.group_by(KEY).agg(pl.len() == pl.first("num_points"))["len"].sum()
    points = points.with_columns(time_ns=pl.col("coef") * pl.col("tiles") + pl.col("intercept"))
    long = points.filter(pl.col("time_ns") > SHORTEST_NS)
    notes = (
        *(f"there is no column '{name}', so lines are not judged by it" for name in QUALITY if name not in table.columns),
        f"{lines.height - good.height:,} of {lines.height:,} lines left out (R² ≤ {LEAST_R2} or RMSRE ≥ {MOST_RMSRE:g}, "
        "or fitted to one point)",
        f"{points.height - long.height:,} of {points.height:,} points left out, where a line is not above "
        f"{SHORTEST_NS / 1000:g} µs ({1 - long.height / max(points.height, 1):.1%})",
        f"{counted:,} of {good.height:,} lines have as many tile counts here as points in their fit",
    )
    kept = long if most is None else _thinned(long, most)
    return Imported(reshard_single, _rows(kept), cards, notes, extra=extra_columns(table, (*NEEDED, *QUALITY, *IGNORED)))


def _points(options: Options) -> int | None:
    """How many tile counts of a line to keep: all (None), unless `--set points=…` gives a number."""
    if options.mapping is not None:
        raise InvalidValue("`mapping` is for csv and parquet; the columns of fitted lines are known")
    unknown = sorted(set(options.values) - {"points"})
    if unknown:
        raise InvalidValue(f"`constants` {unknown[0]} does not apply to fitted lines (known: points)")
    given = options.values.get("points")
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or int(given) < 2:
        raise InvalidValue(f"`constants` points must be a whole number of at least 2, got '{given}'")
    return int(given)


def _text(path: Path, skips: Skips) -> pl.DataFrame:
    """The cells as text, of a file that may be compressed."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
    if not packed:
        return read_csv_text(path, skips)
    with scratch_folder() as folder:
        plain = Path(folder, "lines.csv")
        with guarded("the compressed file", "restore it", "is cut or damaged"):
            gunzip_to(path, plain)
        return read_csv_text(plain, skips)


def _lines(table: pl.DataFrame) -> pl.DataFrame:
    """One row per line: grids, strategies, coefficients, and whether the fit is good enough."""
    sides: dict[str, pl.Series] = {}
    for side in ("in", "out"):
        cells = table[f"{side}_grid"].str.extract_groups("^([1-8])x([1-8])$").struct
        refuse_cells(table, cells[0].is_null(), f"{side}_grid", "must be columns and rows of cores from 1x1 to 8x8")
        sides |= {f"{side}_x": cells[0].cast(pl.Int64), f"{side}_y": cells[1].cast(pl.Int64)}
    group = table["group"].str.extract_groups(f"^{SHARDING}-{SHARDING}$").struct
    refuse_cells(table, group[0].is_null(), "group", "must be two row-major shardings, as the published sweep names them")
    strategies = {f"{side}_strategy": group[place].str.to_lowercase() for place, side in enumerate(("in", "out"))}
    fit = {name: numbers(table, name) for name in ("coef", "intercept")}
    good = pl.repeat(True, table.height, dtype=pl.Boolean, eager=True)
    points = pl.Series([None] * table.height, dtype=pl.Int64)
    if "num_points" in table.columns:
        points = whole_numbers(table, "num_points")
        refuse_cells(table, points < 1, "num_points", "must be at least 1")
        good &= points > 1
    if "RMSRE" in table.columns:
        rmsre = numbers(table, "RMSRE")
        refuse_cells(table, rmsre < 0, "RMSRE", "must not be negative")
        good &= rmsre < MOST_RMSRE
    if "r^2" in table.columns:
        # A line through one point has no R²; every other line must have one. Polars orders NaN above 1, so NaN is refused too.
        r2 = table["r^2"].cast(pl.Float64, strict=False)
        told = (r2 <= 1).fill_null(False) & r2.is_finite().fill_null(False)
        several = (points > 1).fill_null(True)
        refuse_cells(table, ~told & several, "r^2", "must be a number, at most 1, where a line has two points or more")
        good &= told & (r2 > LEAST_R2).fill_null(False)
    found = pl.DataFrame({**sides, **strategies, **fit, "num_points": points, "good": good, LINE: table[LINE]})
    again = ~found.select(pl.struct(KEY).is_first_distinct()).to_series()
    refuse_cells(table, again, "group", "must have one line only")
    return found


def _tile_counts(lines: pl.DataFrame) -> pl.DataFrame:
    """The tile counts of the published sweep on the grids of some lines, each with the shape in the middle."""
    axes = {name: lines[name].unique().sort().to_list() for name in GRIDS}
    shape = [pl.lit(1, pl.Int64).alias(name) for name in ("height_tiles", "width_tiles")]
    suites = [lines.select(*KEY).clear().with_columns(shape)]
    suites += [suite.problems.select(suites[0].columns) for suite in reshard_single.op.sweep("published", axes)]
    in_cores, out_cores = (pl.col(f"{side}_x") * pl.col(f"{side}_y") for side in ("in", "out"))
    tiles = pl.col("height_tiles") * pl.col("width_tiles")
    fits = TILE_BYTES * (tiles / in_cores + tiles / out_cores) <= BOTH_BYTES
    # The sweep runs by width and a group keeps its order, so the middle shape is neither the flattest nor the tallest.
    middle = pl.col("height_tiles", "width_tiles").get((pl.len() - 1) // 2)
    return pl.concat(suites).filter(fits).group_by(*KEY, tiles=tiles).agg(middle).sort(*KEY, "tiles")


def _thinned(points: pl.DataFrame, most: int) -> pl.DataFrame:
    """At most `most` tile counts of each line, denser among the small ones, where a line bends most in relative terms."""
    last = pl.len().over(KEY) - 1
    place = pl.int_range(pl.len()).over(KEY)
    wanted = [place == (last * (step / (most - 1)) ** 2).round() for step in range(most)]
    return points.filter(pl.any_horizontal(wanted))


def _rows(points: pl.DataFrame) -> pl.DataFrame:
    problem = [pl.col(name).alias(f"problem.{name}") for name in ("height_tiles", "width_tiles", *KEY)]
    return points.select(*problem, "time_ns", LINE).with_columns(pl.lit("bf16").alias("problem.dtype"), status=pl.lit("ok"))

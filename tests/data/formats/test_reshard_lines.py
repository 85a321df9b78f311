"""Fitted lines of reshards: the importer's contract, where lines are evaluated, what is left out and said to be."""

import gzip
from pathlib import Path

import polars as pl
import pytest

from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.families.single import reshard_single
from kerncast.testing.importers import ImporterContract

HEADER = "in_grid,out_grid,group,coef,intercept,r^2,RRMSE,RMSRE,num_points\n"


def line(source, target, coef, intercept, r2="0.99", rmsre="0.05", points=8, pair=("BLOCK", "HEIGHT")):
    group = "-".join(f"ShardStrategy.{name}-ShardOrientation.ROW_MAJOR" for name in pair)
    return f"{source},{target},{group},{coef},{intercept},{r2},0.02,{rmsre},{points}\n"


# From 8x8 to 1x1, the 8 cuts of a block leave tile counts of 64 to 512 in steps of 64; a core takes 672 with its input.
SAMPLE = HEADER + line("8x8", "1x1", 36.25, 459.0) + line("8x7", "5x7", 20.0, -6000.0, points=7)


def rows_of(tmp_path: Path, text: str | bytes, name="lines.csv", device=None, strict=True, **values):
    source, notes = tmp_path / name, []
    source.write_bytes(text if isinstance(text, bytes) else text.encode())
    out, options = tmp_path / f"{name}.d", ImportOptions(device, values=values)
    dataset = import_files("reshard-lines", [source], out, options, notes.append, strict)
    return dataset.read(reshard_single).with_columns(
        tiles=pl.col("problem.height_tiles") * pl.col("problem.width_tiles")
    ), " ".join(notes)


class TestReshardLines(ImporterContract):
    format_name, sample, options = "reshard-lines", SAMPLE.encode(), ImportOptions(device="wormhole_b0")

    def test_every_row_remembers_its_file_and_line(self, tmp_path: Path) -> None:
        """One line of the file makes many rows: each names the line that it lies on."""
        dataset = self._import(tmp_path, self.sample)
        rows = dataset.read(reshard_single)
        assert set(rows["source"]) == {source.digest for source in dataset.contents.sources}
        assert dict(rows.select("problem.in_y", "source_line").unique().iter_rows()) == {8: 2, 7: 3}


def test_a_line_is_evaluated_at_each_tile_count_of_the_published_sweep(tmp_path):
    """On 8x8 → 1x1: multiples of 64 tiles to 512, one shape each, on Wormhole, in bf16."""
    rows, notes = rows_of(tmp_path, HEADER + line("8x8", "1x1", 36.25, 459.0))
    assert rows["tiles"].sort().to_list() == [64 * step for step in range(1, 9)]
    assert (rows["time_ns"] == 36.25 * rows["tiles"] + 459.0).all()
    assert set(rows["device"]) == {"wormhole_b0"}
    assert set(rows["problem.dtype"]) == {"bf16"}
    assert "1 of 1 lines have as many tile counts here as points in their fit" in notes
    # Of 64 = 8·8, 128 = 8·16 = 16·8 …: the shape in the middle by width.
    shapes = dict(rows.select("tiles", "problem.width_tiles").iter_rows())
    assert (shapes[64], shapes[192], shapes[256]) == (8, 8, 16)


def test_bad_fits_and_points_below_a_microsecond_are_left_out_and_counted(tmp_path):
    """R² ≤ 0.5, RMSRE ≥ 1, one point whatever its R²; and where a negative intercept pulls a line under 1 µs."""
    bad = (
        line("8x8", "1x1", 1.0, 5000.0, r2="0.5", pair=("BLOCK", "WIDTH"))
        + line("8x8", "1x1", 1.0, 5000.0, rmsre="1.0", pair=("WIDTH", "BLOCK"))
        + line("8x8", "1x1", 0.0, 5000.0, r2="", points=1, pair=("WIDTH", "HEIGHT"))
        + line("8x8", "1x1", 0.0, 5000.0, r2="nan", points=1, pair=("HEIGHT", "WIDTH"))
        + line("8x8", "1x1", 0.0, 5000.0, r2="1.0", points=1, pair=("HEIGHT", "BLOCK"))
    )
    rows, notes = rows_of(tmp_path, HEADER + line("8x8", "1x1", 20.0, -1560.0) + bad)
    assert rows["tiles"].min() == 192  # 128 tiles would take exactly 1,000 ns
    assert "5 of 6 lines left out" in notes
    assert "2 of 8 points left out" in notes


def test_points_thins_a_line_and_compressed_files_are_read(tmp_path):
    """`--set points` keeps the ends and is denser among the small; .csv.gz is the same file."""
    rows, _ = rows_of(tmp_path, gzip.compress((HEADER + line("8x8", "1x1", 36.25, 459.0)).encode()), "l.csv.gz", points="4")
    assert rows["tiles"].sort().to_list() == [64, 128, 256, 512]


@pytest.mark.parametrize(
    ("text", "values", "says"),
    [
        (HEADER.replace("coef", "slope") + line("8x8", "1x1", 1, 1), {}, "line 1: no column 'coef'"),
        (HEADER + line("8x9", "1x1", 1, 1), {}, "line 2: in_grid must be columns and rows of cores"),
        (HEADER + line("8x8", "1x1", 1, 1, pair=("BLOCK", "DIAGONAL")), {}, "line 2: group must be two row-major"),
        (HEADER + 2 * line("8x8", "1x1", 1, 1), {}, "line 3: group must have one line only"),
        (HEADER + line("8x8", "8x8", 1, 1), {}, "line 2: the published sweep has no reshard"),
        (HEADER + line("8x8", "1x1", 1, 1, r2=""), {}, r"line 2: r\^2 must be a number"),
        (HEADER + line("8x8", "1x1", 1, 1, r2="nan"), {}, r"line 2: r\^2 must be a number, at most 1, .* got 'nan'"),
        (HEADER + line("8x8", "1x1", 1, 1, r2="inf"), {}, r"line 2: r\^2 must be a number"),
        (HEADER + line("8x8", "1x1", 1, 1, rmsre="-0.1"), {}, "line 2: RMSRE must not be negative"),
        (HEADER + line("8x8", "1x1", 1, 1, points=0), {}, "line 2: num_points must be at least 1"),
        (gzip.compress(b"", mtime=0)[:10] + b"garbage" * 9, {}, "the compressed file is cut or damaged"),
        (gzip.compress(SAMPLE.encode())[:-12], {}, "the compressed file is cut or damaged"),
        (HEADER + line("8x8", "1x1", "nan", 1), {}, "line 2: coef must be a finite number"),
    ],
)
def test_what_is_not_a_line_is_refused_with_its_line(tmp_path, text, values, says):
    """The rule, the line and the value, never a guess."""
    with pytest.raises(BadFile, match=says):
        rows_of(tmp_path, text, **values)


def test_lines_of_wormhole_cards_are_not_relabelled(tmp_path):
    """--device may repeat what the lines were fitted on, and nothing else."""
    with pytest.raises(InvalidValue, match="measured on wormhole_b0, not a100: leave `device` out"):
        rows_of(tmp_path, SAMPLE, device="a100")
    assert set(rows_of(tmp_path, SAMPLE, device="wormhole_b0")[0]["device"]) == {"wormhole_b0"}


@pytest.mark.parametrize("values", [{"points": "1"}, {"points": "many"}, {"func": "exp"}])
def test_settings_that_mean_nothing_are_refused(tmp_path, values):
    """`--set` knows `points`, a whole number of at least 2."""
    with pytest.raises(InvalidValue, match="`constants`"):
        rows_of(tmp_path, SAMPLE, **values)

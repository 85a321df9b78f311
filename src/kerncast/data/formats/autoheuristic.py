"""Logs of PyTorch's AutoHeuristic: a JSON line, a CSV header, one row per choice that was timed.

    {"shared_memory": 166912, "device_capa": [8, 0], "name": "mm", "numerical_features": …, "categorical_features": …}
    m,k,n,mat1_dtype,…,choice,feedback
    1920,1024,12288,torch.float16,…,extern_mm,0.2266560047864914

`name` says what was timed, `choice` which kernel, `feedback` the milliseconds of one launch (inf: the choice did not
run). A row that occurs again is a repeat. The log may be in a zip archive. The formats are those written by
https://github.com/pytorch/pytorch/tree/main/torch/_inductor/autoheuristic
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import polars as pl

from kerncast.core import dtypes
from kerncast.core.io.foreign import JSON, decode_json, guarded, refuse_large_members
from kerncast.core.op import Family
from kerncast.data.formats import Head, Imported, Importer, ImportOptions, extra_columns, numbered_after
from kerncast.data.schema import Status
from kerncast.data.skipping import Skips
from kerncast.data.tables import LINE, plain_text, refuse_cells, respelled, whole_numbers
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.library import devices
from kerncast.library.families.gemm_triton import flex_attention_triton, mixed_mm_triton, pad_mm_inductor, triton

DTYPES = dtypes.spelled("torch.float64", "torch.float32", "torch.float16", "torch.bfloat16", "torch.float8_e4m3fn",
                        "torch.float8_e5m2", "torch.int8", "torch.uint8")  # fmt: skip
FLAGS = {"True": True, "False": False}
# The value of `using_tf32` for a product that is not fp32.
NOT_FP32 = "not_float_32"
TILE = r"^type=triton_BLOCK-M=(\d+)_BLOCK-K=(-?\d+)_BLOCK-N=(\d+)_numstages=(\d+)_numwarps=(\d+)$"
TILE_NAMES = ("BLOCK_M", "BLOCK_K", "BLOCK_N", "num_stages", "num_warps")
EXTERN = "extern_"
MATRICES = ("mat1", "mat2")
STRIDES = tuple(f"{matrix}_stride_{axis}" for matrix in MATRICES for axis in (0, 1))
CONTIGUOUS = tuple(f"{matrix}_iscontig" for matrix in MATRICES)
PRODUCT = ("m", "k", "n", "mat1_dtype", *STRIDES)

Columns = dict[str, pl.Series]


@dataclass(frozen=True)
class Format:
    """What a log of one name holds: required features, those that the op can do without, and what they mean."""

    family: Family
    required: Sequence[str]
    optional: Sequence[str]
    read: Callable[[pl.DataFrame], Columns]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that such a log may have."""
        return (*self.required, *self.optional, "choice", "feedback")


def label(table: pl.DataFrame) -> Columns:
    """`time_ns`, `status` and `error`; the log does not say why a choice did not run."""
    times = table["feedback"].cast(pl.Float64, strict=False)
    failed = times == float("inf")
    good = times.is_finite() & (times > 0)
    refuse_cells(table, ~(good.fill_null(False) | failed.fill_null(False)), "feedback", "must be milliseconds, or inf")
    reason = "feedback is inf: the choice could not be launched, the log does not say why"
    return {
        "time_ns": (times * 1e6).set(failed, None),
        "status": pl.select(
            pl.when(failed).then(pl.lit(str(Status.LAUNCH_ERROR))).otherwise(pl.lit(str(Status.OK)))
        ).to_series(),
        "error": pl.select(pl.when(failed).then(pl.lit(reason))).to_series(),
    }


def _translated(
    table: pl.DataFrame, column: str, values: Mapping[str, object], dtype: type[pl.DataType] = pl.String
) -> pl.Series:
    """A column of known words as what they mean."""
    refuse_cells(table, ~table[column].is_in(list(values)), column, f"must be one of {', '.join(values)}")
    return table[column].replace_strict(values, return_dtype=dtype)


def _by_choice(table: pl.DataFrame, parsed: pl.DataFrame) -> Columns:
    """Columns `config.*` of every row, looked up by choice: there are few different choices."""
    joined = table.select("choice").join(parsed, on="choice", how="left", maintain_order="left")
    return {name: joined[name] for name in parsed.columns if name != "choice"}


def _tiles(table: pl.DataFrame) -> pl.DataFrame:
    """The different choices, with the sizes of those that are Triton templates (null for the others)."""
    choices = table["choice"].unique().sort()
    parts = choices.str.extract_groups(TILE).struct.rename_fields(list(TILE_NAMES)).struct.unnest()
    return pl.DataFrame({"choice": choices}).hstack(parts.select(pl.all().cast(pl.Int64, strict=False)))


def _template_or_library(table: pl.DataFrame) -> Columns:
    """The config of a matmul template; `extern_…` is a library kernel, and a log may have only one."""
    parsed = _tiles(table)
    library = parsed.filter(pl.col("choice").str.starts_with(EXTERN))["choice"].to_list()
    known = parsed.filter(pl.col("BLOCK_M").is_not_null())["choice"].to_list()
    rule = f"must be {EXTERN}… or type=triton_BLOCK-M=…_BLOCK-K=…_BLOCK-N=…_numstages=…_numwarps=…"
    refuse_cells(table, ~table["choice"].is_in([*known, *library]), "choice", rule)
    if len(library) > 1:
        # Two library kernels would share one config: the one with the most rows is kept.
        counts = (
            table.filter(pl.col("choice").is_in(library))
            .group_by("choice")
            .len()
            .sort("len", "choice", descending=[True, False])
        )
        main, other = counts["choice"][0], counts["choice"][1:].implode()
        refuse_cells(table, table["choice"].is_in(other), "choice", f"is a second library kernel besides {main}")
    kind = pl.when(pl.col("BLOCK_M").is_null()).then(pl.lit("library")).otherwise(pl.lit("triton"))
    return _by_choice(
        table, parsed.with_columns(kind.alias("config.kind")).rename({name: f"config.{name}" for name in TILE_NAMES})
    )


def _storage(table: pl.DataFrame, gaps: bool) -> Columns:
    """`problem.layout` from the strides: a row-major matrix has (columns, 1), a column-major one (1, rows).

    With `gaps` the first of these may be larger, and is then the leading dimension, `problem.lda` or `problem.ldb`.
    """
    letters: list[pl.Series] = []
    leading: Columns = {}
    for matrix, (rows, columns) in zip(MATRICES, (("m", "k"), ("k", "n")), strict=True):
        size = pl.DataFrame({"rows": whole_numbers(table, rows), "columns": whole_numbers(table, columns)})
        outer, inner = (whole_numbers(table, f"{matrix}_stride_{axis}") for axis in (0, 1))
        # The stride along a side of length 1 is never used, so it does not decide.
        letter = size.select(
            pl.when((outer == pl.col("columns")) & (inner == 1)).then(pl.lit("r"))
            .when((outer == 1) & (inner == pl.col("rows"))).then(pl.lit("c"))
            .when((inner == 1) & (pl.col("rows") == 1)).then(pl.lit("r"))
            .when((outer == 1) & (pl.col("columns") == 1)).then(pl.lit("r"))
            .when((outer > pl.col("columns")) & (inner == 1) & gaps).then(pl.lit("R"))
            .when((outer == 1) & (inner > pl.col("rows")) & gaps).then(pl.lit("C"))
        ).to_series()  # fmt: skip
        stored = "stored by rows or by columns" if gaps else "packed"
        refuse_cells(
            table,
            letter.is_null(),
            f"{matrix}_stride_0",
            f"and {matrix}_stride_1 must be those of a {rows} × {columns} matrix that is {stored}",
        )
        found = size.select(pl.when(letter == "R").then(outer).when(letter == "C").then(inner)).to_series()
        if gaps:
            leading[f"problem.ld{'ab'[len(letters)]}"] = found
        letters.append(letter.str.to_lowercase())
    return {"problem.layout": letters[0] + letters[1] + "r", **leading}


def _product(table: pl.DataFrame, gaps: bool = False) -> Columns:
    """The problem parameters that mm, mixed_mm and pad_mm share; only mm has leading dimensions (`gaps`)."""
    sizes = {f"problem.{name.upper()}": whole_numbers(table, name) for name in ("m", "n", "k")}
    for name in CONTIGUOUS:
        if name in table.columns:  # follows from the strides; any other word means damage
            _translated(table, name, FLAGS, pl.Boolean)
    return {**sizes, "problem.dtype": _translated(table, "mat1_dtype", DTYPES), **_storage(table, gaps)}


def _same_dtypes(table: pl.DataFrame) -> None:
    if "mat2_dtype" in table.columns:
        refuse_cells(table, table["mat2_dtype"] != table["mat1_dtype"], "mat2_dtype", "must be the type of mat1")


def _tf32(table: pl.DataFrame) -> Columns:
    """Whether fp32 may be computed as TF32; never for other types."""
    if "using_tf32" not in table.columns:
        return {}
    flag = _translated(table, "using_tf32", {**FLAGS, NOT_FP32: False}, pl.Boolean)
    bad = (table["mat1_dtype"] == "torch.float32") == (table["using_tf32"] == NOT_FP32)
    refuse_cells(table, bad, "using_tf32", f"must be True or False for torch.float32 and {NOT_FP32} for other types")
    return {"problem.tf32": flag}


def _mm(table: pl.DataFrame) -> Columns:
    _same_dtypes(table)
    return {**_product(table, gaps=True), **_tf32(table), **_template_or_library(table)}


def _mixed_mm(table: pl.DataFrame) -> Columns:
    return {**_product(table), "problem.b_dtype": _translated(table, "mat2_dtype", DTYPES), **_template_or_library(table)}


def _pad_mm(table: pl.DataFrame) -> Columns:
    _same_dtypes(table)
    if "mat2_align_size" in table.columns:
        first, second = whole_numbers(table, "mat1_align_size"), whole_numbers(table, "mat2_align_size")
        refuse_cells(table, first != second, "mat2_align_size", "must be that of mat1")
    return {
        **_product(table),
        **{f"problem.pad_{name}": whole_numbers(table, f"{name}_padded_length") for name in ("m", "n", "k")},
        "problem.align": whole_numbers(table, "mat1_align_size"),
        "problem.a_prepadded": _translated(table, "prepadded_mat1", FLAGS, pl.Boolean),
        "problem.b_prepadded": _translated(table, "prepadded_mat2", FLAGS, pl.Boolean),
        **_tf32(table),
        "config.choice": _translated(table, "choice", {"orig": "orig", "pad": "pad"}),
    }


FLEX = {"b": "batch", "h": "heads", "m": "q_len", "n": "head_dim", "kv_seq_length": "kv_len",
        "subgraph_num_nodes": "mod_nodes", "subgraph_num_args_used": "mod_args"}  # fmt: skip
Q_STRIDES = tuple(f"q_stride_{axis}" for axis in range(4))


def _flex_attention(table: pl.DataFrame) -> Columns:
    problem = {f"problem.{target}": whole_numbers(table, name) for name, target in FLEX.items()}
    parsed = _tiles(table).filter(pl.col("BLOCK_K") == -1).drop("BLOCK_K")
    rule = "must be type=triton_BLOCK-M=…_BLOCK-K=-1_BLOCK-N=…_numstages=…_numwarps=…"
    refuse_cells(table, ~table["choice"].is_in(parsed["choice"].to_list()), "choice", rule)
    config = _by_choice(table, parsed.rename({name: f"config.{name}" for name in TILE_NAMES if name != "BLOCK_K"}))
    dtype = _translated(table, "dtype", DTYPES)
    return {**problem, "problem.dtype": dtype, "problem.q_layout": _query_layout(table), **config}


def _query_layout(table: pl.DataFrame) -> pl.Series:
    """The order of Q's axes from its strides; the stride of an axis of length 1 is ignored."""
    numbers = table.select(whole_numbers(table, name).alias(name) for name in (*"bhmn", *Q_STRIDES))
    b, h, m, n = (pl.col(name) for name in "bhmn")
    orders = {"bhmd": (h * m * n, m * n, n), "bmhd": (h * m * n, n, h * n)}
    matches = pl.coalesce(
        pl.when(
            *(
                (size == 1) | (pl.col(stride) == wanted)
                for size, stride, wanted in zip((b, h, m), Q_STRIDES, strides, strict=False)
            ),
            (n == 1) | (pl.col(Q_STRIDES[3]) == 1),
        ).then(pl.lit(label))
        for label, strides in orders.items()
    )
    layout = numbers.select(matches).to_series()
    refuse_cells(
        table, layout.is_null(), Q_STRIDES[0], f"and the next three must be those of a packed Q ({' or '.join(orders)})"
    )
    return layout


FORMATS = {
    "mm": Format(triton, PRODUCT, ("mat2_dtype", "using_tf32", *CONTIGUOUS), _mm),
    "mixed_mm": Format(mixed_mm_triton, (*PRODUCT, "mat2_dtype"), CONTIGUOUS, _mixed_mm),
    "flex_attention": Format(flex_attention_triton, (*FLEX, "dtype", *Q_STRIDES), (), _flex_attention),
    "pad_mm": Format(
        pad_mm_inductor,
        (
            *PRODUCT, "m_padded_length", "k_padded_length", "n_padded_length", "mat1_align_size", "prepadded_mat1",
            "prepadded_mat2",
        ),
        ("mat2_dtype", "mat2_align_size", "using_tf32", *CONTIGUOUS),
        _pad_mm,
    ),
}  # fmt: skip


# A log is split into cells this much at a time: the text and its cells take ten times its size.
PIECE_BYTES = 8_000_000


class Metadata(msgspec.Struct, frozen=True):
    """The first line of a log. Other keys are ignored: the features are those that line 2 names."""

    name: str
    shared_memory: int | None = None
    device_capa: tuple[int, int] | None = None


@dataclass(frozen=True)
class Log:
    """One log: its rows as text, with `source_line` counted from its own first line."""

    metadata: Metadata
    table: pl.DataFrame


class AutoHeuristic(Importer):
    """AutoHeuristic logs, as text or in a zip archive."""

    name = "autoheuristic"
    doc = "logs of PyTorch's AutoHeuristic (mm, mixed_mm, flex_attention, pad_mm), text or zip; `device` says the GPU"

    def recognises(self, head: Head) -> bool:
        first = head.text.partition("\n")[0]
        return first.startswith("{") and '"numerical_features"' in first

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        if options.values or options.mapping is not None:
            raise InvalidValue("an AutoHeuristic log names its own columns: `constants` and `mapping` do not apply to it")
        before = 0
        for member, data in _texts(path):
            lines = data.count(b"\n") + 1
            try:
                log = parse_log(data, options.skips, before, member)
                del data  # a log may have a million rows, and they are all in `log` now
                _check_device(log.metadata, options.device)
                form, notes = _form(log)
                table = options.skips.convert(log.table, lambda rows, form=form: _rows(form, rows), before, member)  # type: ignore[misc]
            except KerncastError as error:
                raise type(error)(f"{member}{error}") from error
            # Lines are numbered across all logs of an archive, so that every row has a unique number.
            yield replace(numbered_after(table, before), notes=tuple(f"{member}{note}" for note in notes))
            before += lines


def _texts(path: Path) -> Iterator[tuple[str, bytes]]:
    """The logs of a file, each with the prefix of its error messages."""
    with path.open("rb") as file:
        archived = file.read(2) == b"PK"
    if not archived:
        yield "", JSON.read(path)
        return
    with guarded("the zip archive", "is it cut or damaged?", "cannot be unpacked"), zipfile.ZipFile(path) as archive:
        refuse_large_members(archive, path)
        names = sorted(item.filename for item in archive.infolist() if not item.is_dir())
        # Files that macOS adds to an archive are not logs.
        names = [name for name in names if not name.startswith("__MACOSX/") and not Path(name).name.startswith(".")]
        texts = [(f"{name}, " if len(names) > 1 else "", archive.read(name)) for name in names]
    if not texts:
        raise BadFile("the zip archive is empty: there is no log in it")
    yield from texts


def parse_log(data: bytes, skips: Skips, before: int = 0, where: str = "") -> Log:
    """A log taken apart: metadata, header, rows as text. Empty lines are no rows; lines of another length are skipped."""
    plain_text(data[: data.find(b"\n", data.find(b"\n") + 1)])
    first, found, rest = data.partition(b"\n")
    if not found or not first.startswith(b"{"):
        raise BadFile("line 1 must be AutoHeuristic's JSON line, and line 2 the names of the columns")
    try:
        metadata = decode_json(first, type=Metadata)
    except msgspec.DecodeError as error:
        raise BadFile(f"line 1 is not AutoHeuristic's JSON line: {error}") from error
    second = rest[: rest.find(b"\n")] if b"\n" in rest else rest
    names = second.decode("utf-8", "replace").rstrip("\r")
    header = [name.strip() for name in names.split(",")]
    if len(set(header)) != len(header) or LINE in header:
        raise BadFile(f"line 2 must name the features, choice and feedback, each once; it is '{names[:200]}'")
    del data
    cells, number, at = [], 3, len(second) + 1
    while at <= len(rest):
        end = rest.find(b"\n", min(len(rest), at + PIECE_BYTES))
        end = len(rest) if end < 0 else end
        piece = rest[at:end]
        cells.append(_cells(piece, number, header, skips, before, where))
        number, at = number + piece.count(b"\n") + 1, end + 1
    if not cells:
        cells.append(_cells(b"", number, header, skips, before, where))
    return Log(metadata, pl.concat(cells))


def _cells(piece: bytes, number: int, header: list[str], skips: Skips, before: int, where: str) -> pl.DataFrame:
    """Some lines of a log as cells of text; `number` is that of the first one."""
    # A byte that is not UTF-8 becomes a character that no cell may hold, so it costs its own row only.
    lines = pl.Series([piece.decode("utf-8", "replace")]).str.split("\n").explode().str.strip_chars_end("\r")
    rows = pl.DataFrame({LINE: pl.int_range(number, number + lines.len(), dtype=pl.Int64, eager=True), "row": lines})
    rows = rows.filter(pl.col("row") != "")
    commas = rows["row"].str.count_matches(",", literal=True)
    ragged = (commas != len(header) - 1).fill_null(False)
    if ragged.any():
        at, bad = ragged.arg_max() or 0, rows.filter(ragged)
        said = f"line {rows[LINE][at]} has {commas[at] + 1} cells, the header has {len(header)}: the file is cut or damaged"
        skips.add("a line must have as many cells as the header", f"{where}{said}", bad[LINE] + before, bad["row"])
        skips.seen += bad.height
        rows = rows.filter(~ragged)
    cells = rows["row"].str.split_exact(",", len(header) - 1).struct.rename_fields(header).struct.unnest()
    return cells.with_columns(rows[LINE])


def _check_device(metadata: Metadata, name: str | None) -> None:
    """Check `--device`. A log gives capability and shared memory, which do not identify a GPU but can contradict a name."""
    memory, capability = metadata.shared_memory, metadata.device_capa
    architecture = None if capability is None else "sm_" + "".join(map(str, capability))
    fitting = [
        device.name
        for device in devices.profiles().values()
        if memory is not None
        and device.numbers.get("smem_per_block_bytes") == memory
        and (architecture is None or device.architecture in (None, architecture))
    ]
    facts = [f"compute capability {'.'.join(map(str, capability))}"] if capability is not None else []
    facts += [f"{memory:,} bytes of shared memory"] if memory is not None else []
    told = " with ".join(facts) or "neither compute capability nor shared memory"
    if name is None:
        hint = f"add `device={fitting[0]}`" if fitting else "add `device` NAME"
        others = f" (profiles that match: {', '.join(fitting)})" if len(fitting) > 1 else ""
        raise InvalidValue(f"line 1 gives {told}, which does not name a device: {hint} if that was the device{others}")
    device = devices.get(name)
    known = device.numbers.get("smem_per_block_bytes")
    if known is not None and memory is not None and known != memory:
        raise InvalidValue(f"line 1 gives {told}, but {name} has {known:,.0f} per block: `device` must name the GPU of the log")
    if architecture is not None and device.architecture not in (None, architecture):
        raise InvalidValue(f"line 1 gives {told}, but {name} is {device.architecture}: `device` must name the GPU of the log")


def _form(log: Log) -> tuple[Format, list[str]]:
    """What the log holds, and which features it lacks that the op can do without."""
    name = log.metadata.name
    if name not in FORMATS:
        raise BadFile(f"line 1: logs named '{name}' are not known (known: {', '.join(FORMATS)})")
    form = FORMATS[name]
    given = respelled(log.table, form.columns).columns
    lacking = [column for column in (*form.required, "choice", "feedback") if column not in given]
    if lacking:
        raise BadFile(f"line 2: a log of {name} lacks the column '{lacking[0]}' (needed: {', '.join(form.required)})")
    return form, [
        f"there is no feature '{column}', so it is unknown"
        for column in form.optional
        if column not in given and column not in CONTIGUOUS
    ]


def _rows(form: Format, table: pl.DataFrame) -> Imported:
    """The rows of a log in the columns of its family."""
    table = respelled(table, form.columns)
    rows = pl.DataFrame({**form.read(table), **label(table), LINE: table[LINE]})
    return Imported(form.family, rows, extra=extra_columns(table, form.columns))

"""Tables of paged_sdpa_decode from the TTNN op runtime predictor: six shapes, flags, and -1 for what does not apply."""

from __future__ import annotations

import polars as pl

from kerncast.data.text_table import LINE, fold_one_hot, numbers, refuse_cells, whole_numbers
from kerncast.library.ops.ttnn import INPUT


def _sizes(tensor: str, rank: int = 4) -> tuple[str, ...]:
    return tuple(f"{tensor}_shape_{place}" for place in range(1, rank + 1))


Q, K, V, TABLE, MASK, POSITIONS = (
    *(_sizes(name) for name in ("q", "k", "v")), _sizes("page_table", 2), _sizes("attn_mask"), _sizes("cur_pos", 1),
)  # fmt: skip
SHAPES = (*Q, *K, *V, *TABLE, *MASK, *POSITIONS)
DTYPES = {"bfloat8": "bfp8", "bfloat16": "bf16"}
INPUTS = {"input_DRAM": "dram", "input_L1_height_sharded": "l1"}
OUTPUTS = {"output_DRAM": "dram", "output_L1_height_sharded": "l1"}
SHARDINGS = {"dram": "interleaved", "l1": "height"}
PROGRAM, COMPUTE = "use_sdpa_program_config", "use_device_compute_kernel_config"
CHUNKS = {"q_chunk_size": "q_chunk", "k_chunk_size": "k_chunk"}
# Flag → its parameter, and the config that it belongs to.
FLAGS = {
    "exp_approx_mode": ("exp_approx", PROGRAM),
    "math_approx_mode": ("math_approx", COMPUTE),
    "fp32_dest_acc_en": ("fp32_accumulate", COMPUTE),
    "packer_l1_acc": ("packer_l1", COMPUTE),
}
FIDELITIES = {1: "lofi", 2: "hifi2", 3: "hifi3", 4: "hifi4"}
REQUIRED = (
    *SHAPES, *DTYPES, *INPUTS, *OUTPUTS, "is_causal", *CHUNKS, *FLAGS, PROGRAM, "math_fidelity", COMPUTE, "kernel_duration",
)  # fmt: skip
COLUMNS = (*REQUIRED, "scale")


def _flag(table: pl.DataFrame, name: str, only: pl.Series | None = None) -> pl.Series:
    """A column of 0 and 1; None where it does not apply."""
    values = whole_numbers(table, name)
    applies = pl.Series([True] * table.height) if only is None else only
    refuse_cells(table, applies & ~values.is_in([0, 1]), name, "must be 0 or 1")
    return (values == 1).set(~applies, None)


def rows_of(table: pl.DataFrame) -> pl.DataFrame:
    """The rows as problems of paged_sdpa_decode."""
    size = {name: whole_numbers(table, name) for name in SHAPES}
    for name in (*Q, *K, *TABLE):
        refuse_cells(table, size[name] < 1, name, "must be at least 1")
    for name, other in (*zip(V, K, strict=True), (K[3], Q[3]), (TABLE[0], Q[1])):
        refuse_cells(table, size[name] != size[other], name, f"must be as in {other}")
    masked, placed = size[MASK[3]] > 0, size[POSITIONS[0]] > 0
    program, compute = _flag(table, PROGRAM), _flag(table, COMPUTE)
    columns: dict[str, pl.Series] = {
        "q_dim0": size[Q[0]], "batch": size[Q[1]], "heads": size[Q[2]], "head_dim": size[Q[3]],
        "blocks": size[K[0]], "kv_heads": size[K[1]], "block_size": size[K[2]], "pages": size[TABLE[1]],
        "is_causal": _flag(table, "is_causal"), "cur_pos": placed, "mask": masked,
        "mask_len": size[MASK[3]].set(~masked, None), "program_config": program, "compute_config": compute,
        "dtype": fold_one_hot(table, DTYPES), "buffer": fold_one_hot(table, INPUTS), "out_buffer": fold_one_hot(table, OUTPUTS),
    }  # fmt: skip
    # The published sweep places the query by the output's config then.
    moved = (columns["buffer"] == "dram") & (columns["out_buffer"] == "l1")
    refuse_cells(table, moved, "output_L1_height_sharded", "with an interleaved query is not measured as the table says")
    for name, own in CHUNKS.items():
        columns[own] = whole_numbers(table, name).set(~program, None)
    for name, (own, config) in FLAGS.items():
        columns[own] = _flag(table, name, program if config == PROGRAM else compute)
    fidelity = whole_numbers(table, "math_fidelity")
    refuse_cells(table, compute & ~fidelity.is_in(list(FIDELITIES)), "math_fidelity", "must be from 1 to 4")
    columns["math_fidelity"] = fidelity.set(~compute, None).replace_strict(FIDELITIES, default=None, return_dtype=pl.String)
    time = numbers(table, "kernel_duration")
    refuse_cells(table, time <= 0, "kernel_duration", "must be a positive number of nanoseconds")
    return _placed(columns).with_columns(time_ns=time, status=pl.lit("ok"), **{LINE: table[LINE]})


def _placed(columns: dict[str, pl.Series]) -> pl.DataFrame:
    """The shardings that follow from the buffers; an output that lies like the input is labelled that way."""
    frame = pl.DataFrame({f"problem.{name}": values for name, values in columns.items()}).with_columns(
        pl.col("problem.buffer").replace_strict(SHARDINGS).alias("problem.sharding"),
        pl.col("problem.out_buffer").replace_strict(SHARDINGS).alias("problem.out_sharding"),
    )
    return frame.with_columns(
        pl.when(pl.col(f"problem.out_{name}") == pl.col(f"problem.{name}"))
        .then(pl.lit(INPUT))
        .otherwise(f"problem.out_{name}")
        .alias(f"problem.out_{name}")
        for name in ("buffer", "sharding")
    )

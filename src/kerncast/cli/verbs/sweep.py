"""`kerncast sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli import completing
from kerncast.cli.views.output import above_zero, json_option, print_json, table

if TYPE_CHECKING:
    from kerncast.sweeping import SuiteSweep, Summary, Sweep


def _result(sweep: Sweep | SuiteSweep, summary: Summary) -> dict[str, Any]:
    return {
        "vectors": summary.vectors,
        "problems": summary.problems,
        "configs": summary.configs,
        "bytes": summary.bytes,
        "parts": summary.parts,
        "reused_vectors": summary.reused,
        "problems_asked": sweep.problem_count,
        "family": sweep.family.id,
        "device": sweep.device.name,
        "slice": str(sweep.part) if sweep.part else None,
        "unchecked": {name: list(lacking) for name, lacking in sweep.unchecked.items()},
        "path": str(summary.path),
    }


@click.command("sweep")
@click.argument("family_id", metavar="FAMILY", shell_complete=completing.families)
@click.option(
    "--problems",
    multiple=True,
    required=True,
    metavar="SPEC",
    help="A named set (gemm: small, cubes, llm, tall_skinny, k_heavy, primes, edge, wide; grouped_conv: resnet, …, wide, "
    "validation; reshard: published, fitting; TTNN's ops: published), lognormal:N, 'grid:M=1,2,4;N=256:4096:256', "
    "shapeset:FILE of torch-diode, or a "
    ".json, .parquet or .csv file (or file:FILE). "
    "May be repeated.",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=VALUES",
    help="Cross the problems with one more parameter: dtype=fp32,fp64, layout=all, threads=1:8:x2. May be repeated.",
)
@click.option("-x", type=int, metavar="X", help="reshard: only input grids X wide, as --vary in_x=X.")
@click.option("-y", type=int, metavar="Y", help="reshard: only input grids at least Y high, as --vary in_y=Y:8:1.")
@click.option(
    "--max-flops", type=float, callback=above_zero, metavar="FLOP", help="Leave out problems with more arithmetic than this."
)
@click.option(
    "--max-bytes", type=float, callback=above_zero, metavar="BYTES", help="Leave out problems that move more bytes than this."
)
@click.option(
    "--configs",
    default="all",
    show_default=True,
    metavar="SPEC",
    help="all, sample:N (per problem, uniform over the valid ones), portfolio:FILE (.json, .parquet, .csv, or a dataset), for "
    "CK Tile kernels:FILE (names of kernels) or build:DIR (the benchmarks of a build folder), or for gemm/triton what Inductor "
    "offers: inductor, inductor:exhaustive.",
)
@click.option(
    "--device",
    shell_complete=completing.devices,
    default="local",
    show_default=True,
    metavar="NAME",
    help="The device whose limits apply (see `kerncast devices`).",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed gives the same vectors.")
@click.option("--max-vectors", type=int, metavar="N", help="Thin the whole sweep out to N vectors, in proportion.")
@click.option("--slice", metavar="I/N", help="Only the I-th of N disjoint shares of the problems.")
@click.option(
    "--format",
    type=click.Choice(["parquet", "json", "tt-sweep"]),
    default="parquet",
    show_default=True,
    help="tt-sweep: vectors_export/… of tt-metal's sweep framework (reshard/single and TTNN's ops).",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="VECTORS", help="The directory to write.")
@json_option
def command(family_id: str, out: Path, as_json: bool, **options: Any) -> None:
    """Write the vectors of a family to measure: every problem with every config that is valid for it.

    FAMILY may also be the name of an op that has one family (ttnn.exp).

    The same command on an unfinished VECTORS continues where it stopped; on a finished one it says so.

    \b
    kerncast sweep gemm/triton --problems llm --vary dtype=fp16 --vary layout=rcr --device a100 --out llm
    kerncast sweep gemm/triton --problems wide --problems edge --vary dtype=fp16,fp32 --vary layout=all \\
        --configs sample:100 --max-flops 1e8 --device a100 --slice 3/8 --out share-3
    kerncast sweep reshard/single --problems published -x 2 -y 3 --device wormhole_b0 --format tt-sweep --out two-wide
    """
    from kerncast.api.sweep import sweep
    from kerncast.sweeping import Vectors

    with shown(plain=True, what="sweeping") as progress:
        vectors = sweep(family_id, out=out, progress=progress, **options)
    assert isinstance(vectors, Vectors)
    assert vectors.summary is not None
    assert vectors.sweep is not None
    opened, summary = vectors.sweep, vectors.summary
    for name, lacking in opened.unchecked.items():
        echo(
            f"not checked: {name} needs {', '.join(lacking)}, which the profile of {opened.device.name} does not know", err=True
        )
    if as_json:
        print_json(_result(opened, summary))
        return
    if summary.reused:
        state = "already complete" if summary.reused == summary.vectors else f"continued after {summary.reused:,} vectors"
        echo(f"{out}: {state}")
    columns = ("vectors", "problems", "configs", "bytes", "parts")
    table(columns, [[f"{getattr(summary, name):,}" for name in columns]], right=columns)

"""`kerncast sweep`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.cli.verbs.collect_plan import above_zero
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.errors import InvalidValue

if TYPE_CHECKING:
    from kerncast.op import Family
    from kerncast.sweeping import SuiteSweep, Summary, Sweep

PROGRESS_SECONDS = 5.0


@contextmanager
def sweep_progress() -> Iterator[Callable[[int], None]]:
    """How many vectors are done, on stderr: a moving line on a terminal, now and then a plain one elsewhere."""
    start = time.monotonic()
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("sweeping") as status:
            yield lambda done: status.update(f"sweeping: {done:,} vectors, {done / (time.monotonic() - start):,.0f}/s")
        return
    last = start

    def report(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            click.echo(f"sweeping: {done:,} vectors, {done / (last - start):,.0f}/s", err=True)

    yield report


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


def _input_grids(family: Family, x: int | None, y: int | None) -> Iterator[str]:
    """`-x` and `-y` as axes: one width of the input grid, and every height from one on."""
    for option, name, start in (("-x", "in_x", x), ("-y", "in_y", y)):
        if start is None:
            continue
        rule = family.op.parameters.get(name)
        if rule is None:
            raise InvalidValue(f"{option} chooses input grids by {name}, which {family.op.name} has not: leave it out")
        if rule.index(start) is None:
            raise InvalidValue(f"{option} must be {rule.describe()}, got {start}")
        yield f"{name}={start}" if name == "in_x" else f"{name}={start}:{rule.number(rule.size - 1)}:1"


@click.command("sweep")
@click.argument("family_id", metavar="FAMILY")
@click.option(
    "--problems",
    multiple=True,
    required=True,
    metavar="SPEC",
    help="A named set (gemm: cubes, llm, tall_skinny, k_heavy, primes, edge, wide; reshard: published, fitting), "
    "lognormal:N, 'grid:M=1,2,4;N=256:4096:256', or a .json, .parquet or .csv file. May be repeated.",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=VALUES",
    help="Cross the problems with one more parameter: dtype=fp32,fp64, layout=all, threads=1:8:x2. May be repeated.",
)
@click.option("-x", "grid_x", type=int, metavar="X", help="reshard: only input grids X wide, as --vary in_x=X.")
@click.option("-y", "grid_y", type=int, metavar="Y", help="reshard: only input grids at least Y high, as --vary in_y=Y:8:1.")
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
    help="all, sample:N (per problem, uniform over the valid ones) or portfolio:FILE (.json, .parquet, .csv).",
)
@click.option(
    "--device", default="local", show_default=True, metavar="NAME", help="Whose limits hold (see `kerncast devices`)."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of every draw: same seed, same vectors.")
@click.option("--max-vectors", type=int, metavar="N", help="Thin the whole sweep out to N vectors, in proportion.")
@click.option("--slice", "part", metavar="I/N", help="Only the I-th of N disjoint shares of the problems.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "json", "tt-sweep"]),
    default="parquet",
    show_default=True,
    help="tt-sweep: vectors_export/… of tt-metal's sweep framework (reshard/single).",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="VECTORS", help="The directory to write.")
@json_option
def command(
    family_id: str,
    problems: tuple[str, ...],
    vary: tuple[str, ...],
    grid_x: int | None,
    grid_y: int | None,
    max_flops: float | None,
    max_bytes: float | None,
    configs: str,
    device: str,
    seed: int,
    max_vectors: int | None,
    part: str | None,
    file_format: str,
    out: Path,
    as_json: bool,
) -> None:
    """Write the vectors of a family to measure: every problem with every config that is valid for it.

    The same command on an unfinished VECTORS continues where it stopped; on a finished one it says so.

    \b
    kerncast sweep gemm/triton --problems llm --vary dtype=fp16 --vary layout=rcr --device a100 --out llm
    kerncast sweep gemm/triton --problems wide --problems edge --vary dtype=fp16,fp32 --vary layout=all \\
        --configs sample:100 --max-flops 1e8 --device a100 --slice 3/8 --out share-3
    kerncast sweep reshard/single --problems published -x 2 -y 3 --device wormhole_b0 --format tt-sweep --out two-wide
    """
    from kerncast import devices
    from kerncast.problems import parse_vary
    from kerncast.registry import FAMILIES
    from kerncast.sweeping import Slice, open_sweep, parse_selection, write_vectors

    family, profile = FAMILIES.get(family_id), devices.get(device)
    vary = (*vary, *_input_grids(family, grid_x, grid_y))
    sweep = open_sweep(
        family, profile, problems, parse_vary(family, vary), parse_selection(family, configs), seed=seed,
        part=Slice.parse(part) if part else None, max_vectors=max_vectors, max_flops=max_flops, max_bytes=max_bytes,
    )  # fmt: skip
    described = {"problems": " ".join(problems), "vary": " ".join(vary), "configs": configs}
    with sweep_progress() as progress:
        summary = write_vectors(sweep, out, file_format=file_format, described=described, progress=progress)
    for name, lacking in sweep.unchecked.items():
        click.echo(
            f"not checked: {name} needs {', '.join(lacking)}, which the profile of {profile.name} does not know", err=True
        )
    if as_json:
        print_json(_result(sweep, summary))
        return
    if summary.reused:
        state = "complete already" if summary.reused == summary.vectors else f"continued after {summary.reused:,} vectors"
        click.echo(f"{out}: {state}")
    shown = ("vectors", "problems", "configs", "bytes", "parts")
    table(shown, [[f"{getattr(summary, name):,}" for name in shown]], right=shown)

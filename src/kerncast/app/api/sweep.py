"""`kerncast.sweep`: list what to measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from kerncast.app.api.parameters import FamilyOf, MaxFlops
from kerncast.app.api.results import Problems, assignments, problem_texts, problems_described, with_preset
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.device import Device
from kerncast.core.io.arguments import Help
from kerncast.core.op import Family
from kerncast.errors import InvalidValue
from kerncast.library import devices as profiles
from kerncast.library.declared.family_file import family_with_preset
from kerncast.library.problems import parse_vary, problem_notes
from kerncast.measuring.sweeping import Slice, SuiteSweep, Sweep, Vectors, open_sweep, parse_selection, write_vectors


def sweep(
    family: FamilyOf,
    *,
    problems: Annotated[
        Problems,
        Help(
            "A named set (gemm: small, cubes, llm, tall_skinny, k_heavy, primes, edge, wide; grouped_conv: resnet, …, wide, "
            "validation; reshard: published, fitting; TTNN's ops: published), lognormal:N, 'grid:M=1,2,4;N=256:4096:256', "
            "shapeset:FILE of torch-diode, or a .json, .parquet or .csv file (or file:FILE). May be repeated.",
            metavar="SPEC",
            required=True,
        ),
    ],
    vary: Annotated[
        Mapping[str, Any] | Sequence[str] | None,
        Help(
            "Cross the problems with one more parameter: dtype=fp32,fp64, layout=all, threads=1:8:x2. May be repeated.",
            metavar="NAME=VALUES",
        ),
    ] = None,
    x: Annotated[int | None, Help("reshard: only input grids X wide, as --vary in_x=X.", metavar="X", option="-x")] = None,
    y: Annotated[
        int | None, Help("reshard: only input grids at least Y high, as --vary in_y=Y:8:1.", metavar="Y", option="-y")
    ] = None,
    max_flops: MaxFlops = None,
    max_bytes: Annotated[
        float | None, Help("Leave out problems that move more bytes than this.", metavar="BYTES", above=0)
    ] = None,
    configs: Annotated[
        str,
        Help(
            "all, sample:N (per problem, uniform over the valid ones), portfolio:FILE (.json, .parquet, .csv, or a dataset), "
            "for CK Tile kernels:FILE (names of kernels) or build:DIR (the benchmarks of a build folder), or for gemm/triton "
            "what Inductor offers: inductor, inductor:exhaustive.",
            metavar="SPEC",
        ),
    ] = "all",
    device: Annotated[
        Device | str, Help("The device whose limits apply (see `kerncast list device`).", metavar="NAME", names="devices")
    ] = "local",
    seed: Annotated[int, Help("The same seed gives the same vectors.", least=0)] = 0,
    max_vectors: Annotated[int | None, Help("Thin the whole sweep out to N vectors, in proportion.", metavar="N")] = None,
    share: Annotated[
        str | None, Help("Only the I-th of N disjoint shares of the problems.", metavar="I/N", option="--slice")
    ] = None,
    file_format: Annotated[
        str,
        Help(
            "tt-sweep: vectors_export/… of tt-metal's sweep framework (reshard/single and TTNN's ops).",
            option="--format",
            choices=("parquet", "json", "tt-sweep"),
        ),
    ] = "parquet",
    out: Annotated[str | Path | None, Help("The directory to write.", metavar="VECTORS", required=True)] = None,
    progress: Wanted = "auto",
) -> Sweep | SuiteSweep | Vectors:
    """List every problem with every valid config, lazily: `iter_blocks()` gives polars frames, `count()` their number.

    With `out`, the vectors are written there (`file_format`: parquet, json, tt-sweep); an unfinished folder is continued. The
    result reads them back, and its `summary` says what was written.
    """
    found, preset = (family, {}) if isinstance(family, Family) else family_with_preset(family)
    profile = device if isinstance(device, Device) else profiles.get(device)
    axes = (*with_preset(preset, assignments(vary)), *_input_grids(found, x, y))
    specs = problem_texts(problems)
    opened = open_sweep(
        found, profile, specs, parse_vary(found, axes), parse_selection(found, configs), seed=seed,
        part=Slice.parse(share) if share else None, max_vectors=max_vectors, max_flops=max_flops, max_bytes=max_bytes,
    )  # fmt: skip
    with shown(progress) as show:
        for note in (*problem_notes(found, specs), *opened.selection.notes):
            show.say(note)
    if out is None:
        return opened
    described = {"problems": problems_described(problems), "vary": " ".join(axes), "configs": configs}
    with shown(progress) as show:
        summary = write_vectors(opened, Path(out), file_format=file_format, described=described, progress=show)
    vectors = Vectors.open(out)
    vectors.summary, vectors.sweep = summary, opened
    return vectors


def _input_grids(family: Family, x: int | None, y: int | None) -> Iterator[str]:
    """`x` and `y` as axes: one width of the input grid, and every height from one on."""
    for argument, name, start in (("x", "in_x", x), ("y", "in_y", y)):
        if start is None:
            continue
        rule = family.op.parameters.get(name)
        if rule is None:
            raise InvalidValue(f"`{argument}` chooses input grids by {name}, which {family.op.name} lacks: leave it out")
        if rule.index(start) is None:
            raise InvalidValue(f"`{argument}` must be {rule.describe()}, got {start}")
        yield f"{name}={start}" if name == "in_x" else f"{name}={start}:{rule.number(rule.size - 1)}:1"

"""`kerncast.sweep`: list what to measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast import devices as profiles
from kerncast.api.results import Problems, assignments, problem_texts, problems_described, with_preset
from kerncast.api.showing import Wanted, shown
from kerncast.declared.family_file import family_with_preset
from kerncast.device import Device
from kerncast.errors import InvalidValue
from kerncast.op import Family
from kerncast.problems import parse_vary, problem_notes
from kerncast.sweeping import Slice, SuiteSweep, Sweep, Vectors, open_sweep, parse_selection, write_vectors


def sweep(
    family: Family | str,
    *,
    problems: Problems,
    vary: Mapping[str, Any] | Sequence[str] | None = None,
    x: int | None = None,
    y: int | None = None,
    max_flops: float | None = None,
    max_bytes: float | None = None,
    configs: str = "all",
    device: Device | str = "local",
    seed: int = 0,
    max_vectors: int | None = None,
    slice: str | None = None,
    format: str = "parquet",
    out: str | Path | None = None,
    progress: Wanted = "auto",
) -> Sweep | SuiteSweep | Vectors:
    """List every problem with every valid config, lazily: `iter_blocks()` gives polars frames, `count()` their number.

    With `out`, the vectors are written there (`format`: parquet, json, tt-sweep); an unfinished folder is continued. The
    result reads them back, and its `summary` says what was written.
    """
    found, preset = (family, {}) if isinstance(family, Family) else family_with_preset(family)
    profile = device if isinstance(device, Device) else profiles.get(device)
    axes = (*with_preset(preset, assignments(vary)), *_input_grids(found, x, y))
    specs = problem_texts(problems)
    opened = open_sweep(
        found, profile, specs, parse_vary(found, axes), parse_selection(found, configs), seed=seed,
        part=Slice.parse(slice) if slice else None, max_vectors=max_vectors, max_flops=max_flops, max_bytes=max_bytes,
    )  # fmt: skip
    with shown(progress) as show:
        for note in (*problem_notes(found, specs), *opened.selection.notes):
            show.say(note)
    if out is None:
        return opened
    described = {"problems": problems_described(problems), "vary": " ".join(axes), "configs": configs}
    with shown(progress) as show:
        summary = write_vectors(opened, Path(out), file_format=format, described=described, progress=show)
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

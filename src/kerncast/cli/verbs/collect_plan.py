"""What `kerncast collect` is about to do: on which devices, which vectors, and what that will take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerncast.cli.views.output import print_json
from kerncast.errors import InvalidValue

if TYPE_CHECKING:
    import polars as pl

    from kerncast.backends.contract import Backend
    from kerncast.collecting.run import Request
    from kerncast.device import Device
    from kerncast.op import Family
    from kerncast.sweeping import Vector

# What a row takes on disk, and what compiling one kernel takes, for `--dry-run`.
ROW_BYTES = 150
KERNEL_SECONDS = 0.15


def above_zero(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """A limit that leaves something; nan would leave everything."""
    if value is not None and not value > 0:
        raise InvalidValue(f"{option.opts[0]} must be a number above 0, got {value:g}")
    return value


def device_indices(kind: type[Backend], text: str) -> tuple[str, ...]:
    """What `--devices` names, one worker each."""
    from kerncast.backends.contract import TimesItself

    found = tuple(text.split(","))
    # Only the program of a benchmark knows which devices it can use.
    known = None if issubclass(kind, TimesItself) else kind.devices()
    for index in found:
        if not index.strip() or (known is not None and index not in known):
            choice = f"one or more of {', '.join(known)}" if known else "an index or several with commas between them (0,1)"
            raise InvalidValue(f"--devices takes {choice} for backend {kind.name}, got '{text}'")
    if len(set(found)) < len(found):
        raise InvalidValue(f"--devices names a device twice: two workers on one would disturb each other, got '{text}'")
    return found


def blocks_of(
    family: Family,
    vectors: Path | None,
    problems: tuple[str, ...],
    vary: tuple[str, ...],
    configs: str | None,
    max_flops: float | None,
    seed: int,
    max_vectors: int | None = None,
    device: Device | None = None,
) -> tuple[Iterable[pl.DataFrame], int]:
    """The vectors to measure, and how many there are."""
    from kerncast import devices
    from kerncast.problems import parse_vary
    from kerncast.sweeping import Vectors, open_sweep, parse_selection

    if vectors is not None:
        if problems or vary or max_flops or configs is not None:
            raise InvalidValue(
                "--vectors names a finished sweep: --problems, --vary, --configs and --max-flops do not go with it"
            )
        if max_vectors is not None:
            raise InvalidValue(
                "--vectors names a finished sweep: give --max-vectors to `kerncast sweep`, or choose from it with --active"
            )
        found = Vectors.open(vectors)
        if found.family is not family:
            raise InvalidValue(f"{vectors} holds vectors of {found.family.id}, not of {family.id}")
        return found.iter_blocks(), found.count()
    if not problems:
        raise InvalidValue("say what to measure: --problems SPEC (llm, wide, grid:M=1,2;…) or --vectors DIRECTORY")
    selection = parse_selection(family, "all" if configs is None else configs)
    sweep = open_sweep(
        family, device or devices.local(), problems, parse_vary(family, vary), selection,
        seed=seed, max_vectors=max_vectors, max_flops=max_flops,
    )  # fmt: skip
    where = "this machine" if device is None else device.name
    total = sweep.count()
    if not total:
        raise InvalidValue(
            f"no config of {family.id} can run any of the {sweep.problem_count:,} problems on {where}: "
            f"see the constraints in `kerncast families {family.id}`"
        )
    return sweep.iter_blocks(), total


def _measured(out: Path, family: Family) -> set[str]:
    """The keys of the rows that are there already, in a finished dataset and in the journal of an unfinished one."""
    from kerncast.collecting import journal
    from kerncast.data.dataset import Dataset

    if not out.exists():
        return set()
    dataset, found = Dataset.open(out), set()
    if family in dataset.families:
        found |= set(dataset.scan(family).select("key").collect().to_series())
    if (out / journal.NAME).exists():
        found |= {record["key"] for record in journal.read(out / journal.NAME)[1]}
    return found


def _left(request: Request, kernels: Backend, blocks: Iterable[pl.DataFrame]) -> Iterator[Vector]:
    """The vectors that have no row yet."""
    from kerncast.sweeping import vectors_of

    done = _measured(request.out, request.family)
    device = kernels.device().name if done else ""
    for block in blocks:
        for vector in vectors_of(request.family, block):
            if not done or vector.key(device) not in done:
                yield vector


def dry_run(request: Request, kernels: Backend, blocks: Iterable[pl.DataFrame], count: int, as_json: bool) -> None:
    """What a collection would take, without measuring anything."""
    from kerncast.backends.contract import TimesItself

    policy = request.policy
    pairs = [(vector.problem, vector.config) for vector in _left(request, kernels, blocks)]
    done = count - len(pairs)
    # What an active choice may measure counts the rows that are there.
    total = max(0, min(count, request.active.max_vectors or count if request.active else count) - done)
    # An active choice is made while measuring: as many kernels as vectors at the most.
    compilations = min(kernels.compilations(pairs), total) if request.active else kernels.compilations(pairs)
    per_vector = (policy.warmup_ns + 0.6 * policy.samples * policy.sample_ns) / 1e9
    compiling = KERNEL_SECONDS * compilations / max(1, min(request.build_jobs, os.cpu_count() or 1))
    own = isinstance(kernels, TimesItself)
    estimate = {
        "vectors": total,
        "already_there": done,
        "compilations": compilations,
        # A program of its own takes as long as it takes.
        "seconds": None if own else round(total * per_vector + compiling, 1),
        "bytes": total * ROW_BYTES,
    }
    if as_json:
        print_json(estimate)
        return
    there = f" ({done:,} more have a row already)" if done else ""
    size = f"about {total * ROW_BYTES / 1e6:.1f} MB"
    if own:
        click.echo(
            f"{total:,} vectors{there}, {compilations:,} kernels to build, at most {policy.samples * total:,} answers of the "
            f"program (and a second visit to those that disagree), {size}"
        )
    else:
        click.echo(
            f"{total:,} vectors{there}, {compilations:,} kernels to compile, about {compiling:,.1f} s of compiling and "
            f"{total * per_vector:,.1f} s of measuring for kernels shorter than {policy.sample_ns / 1e6:g} ms (longer ones "
            f"take longer), {size}"
        )

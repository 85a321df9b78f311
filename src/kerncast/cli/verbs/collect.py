"""`kerncast collect`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.cli.verbs.collect_plan import above_zero, blocks_of, device_indices, dry_run
from kerncast.cli.views.collect import CollectView
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.errors import InvalidValue, KerncastError

if TYPE_CHECKING:
    from kerncast.backends.command.benchmark import Benchmark
    from kerncast.backends.contract import Backend
    from kerncast.collecting.messages import Policy
    from kerncast.collecting.run import Active, Request, Summary
    from kerncast.op import Family

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """`90s`, `10m`, `1.5h`, or a plain number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match:
        raise InvalidValue(f"a duration is a number with s, m or h (90s, 10m, 1.5h), got '{text}'")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def _deadline(text: str) -> float:
    """What `--timeout` says."""
    found = seconds(text)
    if not found:
        raise InvalidValue(f"--timeout must be more than 0, got '{text}': everything would be killed at once")
    return found


def memory_bytes(text: str | None) -> int | None:
    """`2.5` (GB), `none` or `0` for no limit (0), nothing for the default (None)."""
    if text is None:
        return None
    if text != "none" and not re.fullmatch(r"\d+(?:\.\d+)?", text):
        raise InvalidValue(f"--memory takes GB (2.5), or none for no limit, got '{text}'")
    return 0 if text == "none" else int(float(text) * 1e9)


def policy_of(options: dict[str, Any], benchmark: Benchmark | None) -> Policy:
    """How to measure: as the options say, else as the program's benchmark does."""
    from kerncast.collecting.messages import Policy

    samples, warmup, timeout = options["samples"], options["warmup"], options["timeout"]
    cache = options["cache"] or "warm"
    if benchmark is not None:
        samples, cache = samples or benchmark.samples, options["cache"] or benchmark.cache
    changes: dict[str, Any] = {
        "cache": cache,
        "verify": not options["no_verify"],
        "memory_bytes": memory_bytes(options["memory"]) or 0,
    }
    if samples is not None:
        changes |= {"samples": samples, "fewest_samples": min(samples, Policy().fewest_samples)}
    if warmup is not None:
        changes["warmup_ns"] = int(seconds(warmup) * 1e9)
    if timeout is not None:
        ceiling = int(_deadline(timeout) * 1e9)
        changes |= {"deadline_ceiling_ns": ceiling, "deadline_floor_ns": min(ceiling, Policy().deadline_floor_ns)}
    return Policy(**changes)


def benchmark_of(name: str | None, settings: tuple[str, ...], family: Family, options: dict[str, Any]) -> Benchmark | None:
    """The benchmark of an external program, as the other options change it."""
    if name is None:
        if settings:
            raise InvalidValue("--set changes a setting of a benchmark: name one with --benchmark")
        return None
    from msgspec import structs

    from kerncast.backends.command.benchmark import load

    if options["backend"] not in (None, "command"):
        raise InvalidValue(f"--benchmark is for the backend command, not for {options['backend']}: leave one of them out")
    pairs = [item.partition("=") for item in settings]
    broken = [item for item, (key, equals, _) in zip(settings, pairs, strict=True) if not (key and equals)]
    if broken:
        raise InvalidValue(f"--set takes NAME=VALUE, got '{broken[0]}'")
    benchmark = load(name, {key: value for key, _, value in pairs})
    if benchmark.family != family.id:
        raise InvalidValue(f"benchmark {benchmark.name} measures {benchmark.family}, not {family.id}")
    if options["warmup"]:
        raise InvalidValue(f"benchmark {benchmark.name} warms up by itself: leave out --warmup, or see its settings")
    if options["timeout"]:
        benchmark = structs.replace(benchmark, timeout=_deadline(options["timeout"]))
    if options["reset_command"]:
        benchmark = structs.replace(benchmark, reset=options["reset_command"].split())
    if options["cache"] not in (None, benchmark.cache) and not benchmark.tells("cache"):
        raise InvalidValue(
            f"benchmark {benchmark.name} measures {benchmark.cache} caches: leave out --cache {options['cache']}, "
            "or use {cache} in its argv"
        )
    return benchmark


@click.command("collect")
@click.argument("family_id", metavar="FAMILY")
@click.option(
    "--problems", multiple=True, metavar="SPEC", help="As for `kerncast sweep`: llm, wide, edge, lognormal:N, grid:…, FILE."
)
@click.option(
    "--vary", multiple=True, metavar="NAME=VALUES", help="One more axis: dtype=fp32, layout=all, threads=1,2. May be repeated."
)
@click.option(
    "--max-flops", type=float, callback=above_zero, metavar="FLOP", help="Leave out problems with more arithmetic than this."
)
@click.option("--configs", metavar="SPEC", help="all, sample:N (per problem) or portfolio:FILE. [default: all]")
@click.option(
    "--vectors", type=click.Path(path_type=Path), metavar="DIR", help="What `kerncast sweep` wrote, instead of --problems."
)
@click.option("--backend", metavar="NAME", help="What runs the kernels; the first that knows the family by default.")
@click.option(
    "--benchmark",
    "benchmark_name",
    metavar="NAME|FILE",
    help="An external benchmark program instead: ck-tile, ck-tile-conv, cutlass-profiler, tt-metal-reshard, tt-metal-sweep, "
    "or a TOML file (docs/command.md).",
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the benchmark. May be repeated.")
@click.option(
    "--build-jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Kernels that are built at the same time."
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DATASET", help="The dataset to write or to go on with."
)
@click.option("--devices", default="0", show_default=True, metavar="LIST", help="Device indices, one worker process each: 0,1.")
@click.option(
    "--resume", is_flag=True, help="Add what is missing to a finished dataset. (An unfinished one goes on by itself.)"
)
@click.option("--budget", metavar="TIME", help="Stop after this long: 90s, 10m, 1h.")
@click.option(
    "--max-vectors", type=click.IntRange(min=1), metavar="N", help="Measure N vectors in all: of each problem its share."
)
@click.option(
    "--active",
    is_flag=True,
    help="Within --budget or --max-vectors, measure next what a model knows least about near the top.",
)
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="At most so many samples of a vector.")
@click.option("--warmup", metavar="TIME", help="Warm-up of each vector: 0.002s.")
@click.option("--timeout", metavar="TIME", help="The longest that one launch (10s) or program may take before it is killed.")
@click.option(
    "--chunk-size", type=click.IntRange(min=1), default=64, show_default=True, help="Vectors that are timed side by side."
)
@click.option("--cache", type=click.Choice(["warm", "cold"]), help="Caches before each launch: warm by default.")
@click.option(
    "--memory",
    metavar="GB|none",
    help="Memory that a worker may use (0: no limit); more is out_of_memory. [default: its share of 80 % of what is free]",
)
@click.option("--no-verify", is_flag=True, help="Do not check results before their time counts.")
@click.option("--reset-command", metavar="CMD", help="Run after a worker was lost; {device} is its index. No shell.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--dry-run", is_flag=True, help="Print vectors, compilations, estimated time and disk; measure nothing.")
@json_option
def command(family_id: str, out: Path, as_json: bool, **options: Any) -> None:
    """Measure the kernels of a family and write a dataset, without ever losing a row.

    Samples of one vector are spread in time and guarded by a sentinel; results are checked first; a kernel
    that crashes, hangs or exhausts memory costs one row. Killed at any moment, the same command goes on.
    Exit code 3 when some vectors have no row yet; with --active, leaving some out is the purpose.

    \b
    kerncast collect gemm/cpu --problems llm --vary dtype=fp32 --vary layout=rrr --max-flops 1e8 \\
        --configs sample:100 --out mine
    kerncast collect gemm/cpu --vectors share-3 --devices 0 --budget 10m --out share-3-measured
    kerncast collect gemm/cpu --vectors share-3 --active --budget 10m --out share-3-chosen
    kerncast collect gemm/ck_tile --benchmark ck-tile --set build_dir=/ck/build --set arch=gfx942 --problems llm \\
        --vary dtype=fp16 --vary layout=rcr --configs sample:200 --build-jobs 16 --out mi300
    """
    from kerncast.backends.command import CommandBackend
    from kerncast.collecting.run import collect
    from kerncast.collecting.supervisor import DeviceLost
    from kerncast.registry import FAMILIES

    family = FAMILIES.get(family_id)
    benchmark = benchmark_of(options["benchmark_name"], options["settings"], family, options)
    kind = CommandBackend if benchmark else backend_of(family_id, options["backend"])
    request = _request(family, kind, benchmark, out, options)
    # Made here once for its refusals: a program that is not there is said before anything is written.
    # A sweep for a device that is not this CPU is checked against that device's limits.
    try:
        kernels = kind.configured(request.devices[0], request.options)
        device = kernels.device() if benchmark or not kind.runs_on_cpu else None
    except (KerncastError, OSError):
        raise
    except Exception as error:  # whatever a backend of somebody else throws
        why = f"{type(error).__name__}: {error}"
        raise KerncastError(
            f"device {request.devices[0]} does not come up ({why}): mend it and run the same command"
        ) from error
    sweep = {name: options[name] for name in ("vectors", "problems", "vary", "configs", "max_flops", "seed")}
    blocks, total = blocks_of(family, **sweep, max_vectors=None if request.active else options["max_vectors"], device=device)
    if options["dry_run"]:
        dry_run(request, kernels, blocks, total, as_json)
        return
    if benchmark:
        # A version that cannot be asked for is said here, not after a device was reset for it.
        kernels.software(family_id)
    try:
        with CollectView(total) as view:
            summary = collect(request, blocks, view)
    except DeviceLost as error:
        if not error.rows:
            raise
        click.echo(f"kerncast: {error}", err=True)
        raise SystemExit(3) from error
    _report(summary, total, as_json)
    if summary.without_a_row:
        raise SystemExit(3)


def _request(family: Family, kind: type[Backend], benchmark: Benchmark | None, out: Path, options: dict[str, Any]) -> Request:
    """What the options ask for."""
    from kerncast.backends.command import CommandBackend
    from kerncast.collecting.run import Request

    indices, policy = device_indices(kind, options["devices"]), policy_of(options, benchmark)
    return Request(
        family=family,
        backend=options["backend"] or kind.name,
        devices=indices,
        out=out,
        policy=policy,
        chunk_size=options["chunk_size"],
        budget_seconds=seconds(options["budget"]) if options["budget"] else None,
        extend=options["resume"],
        reset_command=tuple(benchmark.reset_words() if benchmark else (options["reset_command"] or "").split()),
        options=CommandBackend.options(benchmark, policy.verify) if benchmark else {},
        build_jobs=options["build_jobs"],
        memory_bytes=memory_bytes(options["memory"]),
        active=_active(family, options),
    )


def _active(family: Family, options: dict[str, Any]) -> Active | None:
    """Who chooses what to measure, if anybody is to."""
    from kerncast.cli.verbs.active import worth_by_model
    from kerncast.collecting.run import Active

    if not options["active"]:
        return None
    return Active(worth_by_model(family, options["seed"]), options["seed"], options["max_vectors"])


def backend_of(family_id: str, name: str | None) -> type[Backend]:
    """The backend to use, if it can run the family on this machine."""
    from kerncast.backends import backend_for, backend_that_runs, get_backend
    from kerncast.backends.command import CommandBackend
    from kerncast.backends.command.benchmark import shipped_for

    kind = get_backend(name) if name else backend_for(family_id)
    if kind is CommandBackend:
        known = " or ".join([*shipped_for(family_id), "a TOML file"])
        why = "backend command runs external programs" if name else f"no backend here runs {family_id} by itself"
        raise InvalidValue(f"{why}: name the benchmark of its benchmark program with --benchmark ({known})")
    return backend_that_runs(family_id, name)


def _report(summary: Summary, total: int, as_json: bool) -> None:
    """One summary that names the culprits, not one line a failure."""
    disturbed = summary.disturbed_samples / max(1, summary.samples)
    if as_json:
        errors = [{"status": s, "error": e, "rows": n} for (s, e), n in summary.errors.most_common(20)]
        facts = {"path": str(summary.path), "device": summary.device, "vectors": total, "measured": summary.measured}
        facts |= {
            "already_there": summary.already_there,
            "left_out": summary.left_out,
            "raced": summary.raced,
            "revisited": summary.revisited,
            "disturbed": disturbed,
        }
        print_json(
            {
                **facts,
                "seconds": summary.seconds,
                "statuses": summary.statuses,
                "errors": errors,
                "lost": summary.lost,
                "complete": not summary.without_a_row,
            }
        )
        return
    statuses = ", ".join(f"{name} {count:,}" for name, count in summary.statuses.most_common()) or "nothing new"
    click.echo(f"{summary.path}: {statuses} in {summary.seconds:.0f} s on {summary.device}")
    click.echo(
        f"{summary.already_there:,} were there already, {summary.raced:,} near-ties were raced again; the machine was "
        f"disturbed during {disturbed:.1%} of the samples, {summary.revisited:,} vectors were visited a second time for it"
    )
    if summary.errors:
        rows = [(status, f"{count:,}", error) for (status, error), count in summary.errors.most_common(8)]
        table(("status", "rows", "what they said"), rows, "culprits", right=("rows",))
    for index, why in summary.lost.items():
        click.echo(f"device {index} was lost: {why}")
    if summary.without_a_row:
        left = total - summary.measured - summary.already_there
        click.echo(
            f"{left:,} vectors have no row yet; everything measured is safe in {summary.path}: run the same command to go on"
        )
        return
    if summary.left_out:
        click.echo(
            f"{total - summary.left_out:,} of {total:,} vectors measured, chosen actively; --resume and a larger limit add more"
        )
    click.echo(f"next: kerncast inspect {summary.path}")

"""`kerncast collect`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli import completing
from kerncast.cli.on_ray import on_ray_options
from kerncast.cli.signals import polite_signals
from kerncast.cli.views.hardware import hardware_lines
from kerncast.cli.views.output import above_zero, json_option, print_json, table
from kerncast.progress import Progress
from kerncast.writing.shell import word

if TYPE_CHECKING:
    from kerncast.collecting.request import Summary


@click.command("collect")
@click.argument("family_id", metavar="FAMILY", shell_complete=completing.families)
@click.option(
    "--problems",
    multiple=True,
    metavar="SPEC",
    help="As for `kerncast sweep`: small, llm, wide, edge, lognormal:N, grid:…, FILE.",
)
@click.option(
    "--vary", multiple=True, metavar="NAME=VALUES", help="One more axis: dtype=fp32, layout=all, threads=1,2. May be repeated."
)
@click.option(
    "--max-flops", type=float, callback=above_zero, metavar="FLOP", help="Leave out problems with more arithmetic than this."
)
@click.option(
    "--configs",
    metavar="SPEC",
    help="all, sample:N (per problem), portfolio:FILE (or a dataset), for CK Tile kernels:FILE (names of kernels) or "
    "build:DIR (the benchmarks of a build folder), or for gemm/triton what Inductor offers: inductor, inductor:exhaustive. "
    "[default: all]",
)
@click.option(
    "--vectors",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Vectors that `kerncast sweep` wrote, instead of --problems.",
)
@click.option("--backend", metavar="NAME", help="What runs the kernels. [default: the first that knows the family]")
@click.option(
    "--benchmark",
    metavar="NAME|FILE",
    help="An external benchmark program instead: ck-tile, ck-tile-conv, cutlass-profiler, tt-metal-concatenate-heads, "
    "tt-metal-create-qkv-heads, tt-metal-paged-sdpa-decode, tt-metal-reshard, tt-metal-sweep, or a TOML file "
    "(docs/command.md).",
)
@click.option("--set", multiple=True, metavar="NAME=VALUE", help="A setting of the benchmark. May be repeated.")
@click.option(
    "--build-jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Kernels to build at the same time."
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DATASET", help="The dataset to write or to continue."
)
@click.option("--devices", metavar="LIST", help="Device indices, one worker process each: 0,1. [default: 0]")
@on_ray_options("every device of a cluster measures, and this command alone writes (docs/fleet.md)")
@click.option(
    "--resource",
    metavar="NAME",
    help="With --on ray: what counts the devices of a node, such as card. [default: GPU; for CPU kernels one device per node]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Measure what a dataset lacks, finished or not. (An unfinished one continues without it.)",
)
@click.option(
    "--retry-failed",
    is_flag=False,
    flag_value="all",
    metavar="[STATUS,…]",
    help="Measure failed vectors of the dataset again: all of them, or those with these statuses: compile_error,crash.",
)
@click.option("--budget", metavar="TIME", help="Stop after this long, from the start of the command: 90s, 10m, 1h.")
@click.option(
    "--max-vectors", type=click.IntRange(min=1), metavar="N", help="Measure N vectors in total, spread over all problems."
)
@click.option(
    "--active",
    is_flag=True,
    help="Within --budget or --max-vectors, measure next the fast configs that a model is least sure about.",
)
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Maximum samples per vector.")
@click.option("--warmup", metavar="TIME", help="Warm-up time per vector: 0.002s.")
@click.option("--timeout", metavar="TIME", help="Kill a launch or a benchmark program after this long: 10s.")
@click.option(
    "--chunk-size", type=click.IntRange(min=1), default=64, show_default=True, help="Vectors whose samples are interleaved."
)
@click.option("--cache", type=click.Choice(["warm", "cold"]), help="State of the caches before each launch. [default: warm]")
@click.option(
    "--memory",
    metavar="GB|none",
    help="Memory limit of a worker (0: none); exceeding it is out_of_memory. [default: its share of 80 % of free memory]",
)
@click.option("--no-verify", is_flag=True, help="Do not check that kernels compute the right results.")
@click.option("--reset-command", metavar="CMD", help="Run after a worker is lost, without a shell; {device} is its index.")
@click.option(
    "--alike-failures",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Stop when N configs in a row fail in the same way, without a row for them (0: never).",
)
@click.option(
    "--capture-hw",
    is_flag=True,
    help="Keep what rocminfo, nvidia-smi and lscpu say in the dataset; warn where it contradicts the device's profile.",
)
@click.option(
    "--watch", is_flag=True, help="Show the sweep on a page in the browser: rate, time left, statuses, the best so far."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--dry-run", is_flag=True, help="Print vectors, compilations, time (by a short trial) and disk; write nothing.")
@json_option
def command(family_id: str, out: Path, watch: bool, as_json: bool, **options: Any) -> None:
    """Measure the kernels of a family and write a dataset; a crash or a kill loses no row.

    Samples of one vector are spread over time, and a sentinel detects disturbances of the machine. Results are
    checked before times count. A kernel that crashes, hangs or exhausts memory becomes one failed row.
    Ctrl-C and SIGTERM end it after about a second. The rows so far are a dataset at any time, however the command ends;
    run the same command to continue. Exit code 3 when some vectors have no row yet, or nothing worked; vectors that
    --active leaves out do not count.

    \b
    kerncast collect gemm/cpu --problems llm --vary dtype=fp32 --vary layout=rrr --max-flops 1e8 \\
        --configs sample:100 --out mine
    kerncast collect gemm/cpu --vectors share-3 --devices 0 --budget 10m --out share-3-measured
    kerncast collect gemm/cpu --vectors share-3 --active --budget 10m --out share-3-chosen
    kerncast collect gemm/ck_tile --benchmark ck-tile --set build_dir=/ck/build --set arch=gfx942 --problems llm \\
        --vary dtype=fp16 --vary layout=rcr --configs sample:200 --build-jobs 16 --out mi300
    kerncast collect gemm/triton --vectors llm --on ray --address 10.0.0.1:6379 --out fleet
    """
    from kerncast.api.collect import collect

    options["verify"] = not options.pop("no_verify")
    if options["dry_run"]:
        estimate = collect(family_id, out=out, **options)
        print_json(estimate.as_json()) if as_json else echo(*str(estimate).split("\n"))
        return
    with shown(plain=True) as progress, polite_signals() as stop, _watched(watch, out, progress):
        dataset = collect(family_id, out=out, progress=progress, stop=stop, **options)
    collected = [dataset.collected, *dataset.collected.beside]
    if as_json:
        first, *others = (_as_json(each.summary, each.vectors) for each in collected)
        print_json(first | ({"beside": others} if others else {}))
    else:
        for each in collected:
            _report(each.summary, each.vectors)
    if any(each.summary.without_a_row or _all_failed(each.summary) for each in collected):
        raise SystemExit(3)


def _all_failed(summary: Summary) -> bool:
    return summary.measured > 0 and not summary.already_there and not summary.statuses["ok"]


def _watched(wanted: bool, out: Path, progress: Progress) -> AbstractContextManager[None]:
    """The page of the sweep, while it is measured."""
    if not wanted:
        return nullcontext()
    from kerncast.serving.server import open_browser, watched

    def ready(url: str) -> None:
        progress.say(f"watch it at {url}")
        open_browser(url)

    return watched(out, ready=ready, progress=progress)


def _as_json(summary: Summary, total: int) -> dict[str, Any]:
    """A summary as JSON."""
    errors = [{"status": s, "error": e, "rows": n} for (s, e), n in summary.errors.most_common(20)]
    return {
        "path": str(summary.path),
        "device": summary.device,
        "vectors": total,
        "measured": summary.measured,
        "already_there": summary.already_there,
        "left_out": summary.left_out,
        "raced": summary.raced,
        "revisited": summary.revisited,
        "disturbed": _disturbed(summary),
        "unsure": summary.unsure,
        "seconds": summary.seconds,
        "statuses": summary.statuses,
        "errors": errors,
        "lost": summary.lost,
        "hardware": summary.hardware,
        "complete": not summary.without_a_row,
    }


def _disturbed(summary: Summary) -> float:
    return summary.disturbed_samples / max(1, summary.samples)


def _report(summary: Summary, total: int) -> None:
    """Print one summary with failures grouped by cause."""
    disturbed = _disturbed(summary)
    statuses = ", ".join(f"{name} {count:,}" for name, count in summary.statuses.most_common()) or "nothing new"
    echo(f"{summary.path}: {statuses} in {summary.seconds:.0f} s on {summary.device}")
    echo(
        f"{summary.already_there:,} were measured before, {summary.raced:,} near-ties were raced again; the machine was "
        f"disturbed during {disturbed:.1%} of the samples, and {summary.revisited:,} vectors whose samples were disturbed or "
        "disagreed were measured a second time"
    )
    if summary.unsure:
        echo(
            f"! {summary.unsure:,} labels rest on too few quiet samples and may be too slow (disturbed samples count only "
            "where there are no quiet ones): measure on a quieter machine if these matter"
        )
    if summary.errors:
        rows = [(status, f"{count:,}", error) for (status, error), count in summary.errors.most_common(8)]
        table(("status", "rows", "message"), rows, "failures", right=("rows",))
    if summary.hardware is not None:
        echo(*hardware_lines(summary.hardware))
    for index, why in summary.lost.items():
        echo(f"device {index} was lost: {why}")
    if summary.without_a_row:
        left = total - summary.measured - summary.already_there
        kept = f" Everything measured is safe in {summary.path} and can be used now: kerncast inspect {word(summary.path)}"
        some = summary.measured + summary.already_there
        echo(f"{left:,} vectors have no row yet: run the same command to continue.{kept if some else ''}")
        return
    if summary.left_out:
        echo(
            f"{summary.measured + summary.already_there:,} of {total:,} vectors measured, chosen actively; --resume and a "
            "larger limit add more"
        )
    if _all_failed(summary):
        echo("! nothing worked: correct what the messages name, then collect into another folder")
        return
    echo(f"next: kerncast inspect {word(summary.path)}")

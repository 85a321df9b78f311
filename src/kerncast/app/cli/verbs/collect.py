"""`kerncast sweep` and `kerncast collect`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from kerncast.app.api.collect import collect, sweep
from kerncast.app.api.showing import echo, shown
from kerncast.app.cli.signals import polite_signals
from kerncast.app.cli.verb import VerbCall, verb
from kerncast.app.cli.views import Json, hardware_lines, print_json, table
from kerncast.app.serve.server import open_browser, watched
from kerncast.core.io.arguments import Help
from kerncast.core.io.quoting import word
from kerncast.core.progress import Progress
from kerncast.measuring.collection import CollectionSummary
from kerncast.measuring.sweeping import Vectors


@verb("sweep", sweep)
def sweep_verb(call: VerbCall, *, as_json: Json = False) -> None:
    """Write the vectors of a family to measure: every problem with every config that is valid for it.

    FAMILY may also be the name of an op that has one family (ttnn.exp).

    The same command on an unfinished VECTORS continues where it stopped; on a finished one it says so.

    \b
    kerncast sweep gemm/triton --problems llm --vary dtype=fp16 --vary layout=rcr --device a100 --out llm
    kerncast sweep gemm/triton --problems wide --problems edge --vary dtype=fp16,fp32 --vary layout=all \\
        --configs sample:100 --max-flops 1e8 --device a100 --slice 3/8 --out share-3
    kerncast sweep reshard/single --problems published -x 2 -y 3 --device wormhole_b0 --format tt-sweep --out two-wide
    """
    with shown(plain=True, what="sweeping") as progress:
        vectors = call(progress=progress)
    assert isinstance(vectors, Vectors)
    assert vectors.summary is not None
    assert vectors.sweep is not None
    opened, summary = vectors.sweep, vectors.summary
    for name, lacking in opened.unchecked.items():
        echo(
            f"not checked: {name} needs {', '.join(lacking)}, which the profile of {opened.device.name} does not know", err=True
        )
    if as_json:
        facts = {name: getattr(summary, name) for name in ("vectors", "problems", "configs", "bytes", "parts")}
        print_json({
            **facts, "reused_vectors": summary.reused, "problems_asked": opened.problem_count, "family": opened.family.id,
            "device": opened.device.name, "slice": str(opened.part) if opened.part else None,
            "unchecked": {name: list(lacking) for name, lacking in opened.unchecked.items()}, "path": str(summary.path),
        })  # fmt: skip
        return
    if summary.reused:
        state = "already complete" if summary.reused == summary.vectors else f"continued after {summary.reused:,} vectors"
        echo(f"{call['out']}: {state}")
    columns = ("vectors", "problems", "configs", "bytes", "parts")
    table(columns, [[f"{getattr(summary, name):,}" for name in columns]], right=columns)


@verb("collect", collect)
def collect_verb(
    call: VerbCall,
    *,
    watch: Annotated[
        bool, Help("Show the sweep on a page in the browser: rate, time left, statuses, the best so far.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure the kernels of a family and write a dataset; a crash or a kill loses no row.

    Samples of one vector are spread over time, and a sentinel detects disturbances of the machine. Results are
    checked before times count. A kernel that crashes, hangs or exhausts memory becomes one failed row.
    Ctrl-C and SIGTERM end it after about a second. The rows so far are a dataset at any time, however the command ends;
    run the same command to continue. Exit code 3 when some vectors have no row yet, or nothing worked; vectors that
    --active leaves out do not count.

    VECTORS is the folder that `kerncast sweep` wrote, instead of a family and --problems. With --on ray, every device of a
    cluster measures, and this command alone writes.

    \b
    kerncast collect gemm/cpu --problems llm --vary dtype=fp32 --vary layout=rrr --max-flops 1e8 \\
        --configs sample:100 --out mine
    kerncast collect share-3 --devices 0 --budget 10m --out share-3-measured
    kerncast collect share-3 --active --budget 10m --out share-3-chosen
    kerncast collect gemm/ck_tile --benchmark ck-tile --set build_dir=/ck/build --set arch=gfx942 --problems llm \\
        --vary dtype=fp16 --vary layout=rcr --configs sample:200 --build-jobs 16 --out mi300
    kerncast collect llm --on ray --address 10.0.0.1:6379 --out fleet
    """
    out = Path(call["out"])
    if call["dry_run"]:
        estimate = call()
        print_json(estimate.as_json()) if as_json else echo(*str(estimate).split("\n"))
        return
    with shown(plain=True) as progress, polite_signals() as stop, _watched(watch, out, progress):
        dataset = call(extent=replace(call["extent"], stop=stop), progress=progress)
    collected = [dataset.collected, *dataset.collected.beside]
    if as_json:
        first, *others = (_as_json(each.summary, each.vectors) for each in collected)
        print_json(first | ({"beside": others} if others else {}))
    else:
        for each in collected:
            _report(each.summary, each.vectors)
    if any(each.summary.without_a_row or _all_failed(each.summary) for each in collected):
        raise SystemExit(3)


def _all_failed(summary: CollectionSummary) -> bool:
    return summary.measured > 0 and not summary.already_there and not summary.statuses["ok"]


def _watched(wanted: bool, out: Path, progress: Progress) -> AbstractContextManager[None]:
    """The page of the sweep, while it is measured."""
    if not wanted:
        return nullcontext()

    def ready(url: str) -> None:
        progress.say(f"watch it at {url}")
        open_browser(url)

    return watched(out, ready=ready, progress=progress)


def _as_json(summary: CollectionSummary, total: int) -> dict[str, Any]:
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
        "disturbed": summary.disturbed_samples / max(1, summary.samples),
        "unsure": summary.unsure,
        "seconds": summary.seconds,
        "statuses": summary.statuses,
        "errors": errors,
        "lost": summary.lost,
        "hardware": summary.hardware,
        "complete": not summary.without_a_row,
    }


def _report(summary: CollectionSummary, total: int) -> None:
    """Print one summary with failures grouped by cause."""
    disturbed = summary.disturbed_samples / max(1, summary.samples)
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

"""`kerncast sweep`."""

from __future__ import annotations

from typing import Any

from kerncast.app.api.printing import echo
from kerncast.app.api.showing import shown
from kerncast.app.api.sweep import sweep
from kerncast.app.cli.verb import Call, verb
from kerncast.app.cli.views.output import Json, print_json, table
from kerncast.measuring.sweeping import SuiteSweep, Summary, Sweep, Vectors


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


@verb("sweep", sweep)
def command(call: Call, *, as_json: Json = False) -> None:
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
        print_json(_result(opened, summary))
        return
    if summary.reused:
        state = "already complete" if summary.reused == summary.vectors else f"continued after {summary.reused:,} vectors"
        echo(f"{call['out']}: {state}")
    columns = ("vectors", "problems", "configs", "bytes", "parts")
    table(columns, [[f"{getattr(summary, name):,}" for name in columns]], right=columns)

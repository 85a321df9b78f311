"""Verbs about whole networks: `kerncast estimate` and `torch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kerncast.app.api.estimate import estimate
from kerncast.app.api.showing import echo
from kerncast.app.cli.verb import VerbCall, group, verb
from kerncast.app.cli.views import Json, draw, print_json, say, steps, table
from kerncast.core.io.arguments import Help
from kerncast.core.io.quoting import word
from kerncast.torch.reporting import Report
from kerncast.torch.shapes import example_of, shapes_of
from kerncast.torch.validating import validate
from kerncast.torch.validation import MODE_HEADERS, PRODUCT_HEADERS


@verb("estimate", estimate)
def estimate_verb(call: VerbCall, *, as_json: Json = False) -> None:
    """Estimate a step of a whole model on a device, op by op, from its Hugging Face config.

    CONFIG is a config.json or the folder that holds it: a decoder, dense or with experts, with grouped or latent attention.
    Each op is predicted by a model of your store or one that ships, else by its roofline; the table says which. The time is
    that of the kernels: the last line says what is not in it.

    \b
    kerncast estimate Llama-3.1-70B --device h200 --tp 4 --batch 64 --context 4096
    kerncast estimate Llama-3.1-70B --device h200 --tp 4 --batch 4 --context 4096 --phase prefill --dtype fp8
    kerncast estimate DeepSeek-V3 --device b200 --tp 1 --ep 16 --batch 2048 --context 8192 --imbalance 1.2
    kerncast estimate config.json --device all --batch 16 --context 2048
    """
    found = call()
    if as_json:
        print_json(found.as_json())
        return
    echo(found.title)
    draw(found.table)
    say(*found.closing)


@group("torch")
def torch_verb() -> None:
    """PyTorch's compiler: the matrix products it meets in a model, and how well a model of kerncast chooses their kernels.

    These commands need torch: pip install 'kerncast[torch]'. They run the Python file that you name, with your rights.
    Each takes --json.

    \b
    kerncast torch shapes model.py
    kerncast torch shapes model.py --out problems.json
    kerncast torch validate my-model --model-file model.py
    kerncast torch report decided.json
    """


@torch_verb.verb("shapes")
def shapes(
    file: Annotated[str, Help(metavar="FILE.py[:FUNCTION]")],
    *,
    backward: Annotated[bool, Help("Also list the products of the backward pass, as in training.")] = False,
    bias: Annotated[bool, Help("List the products without their bias, for families that have no epilogue.")] = True,
    out: Annotated[Path | None, Help("Write the problems to this file.", metavar="FILE.json")] = None,
    as_json: Json = False,
) -> None:
    """List the matrix products of a model, as torch.compile sees them, without running the model.

    FILE.py is run, so name only a file that you trust. Its FUNCTION (default: example) takes nothing and returns
    (model, inputs). The inputs are a tensor, a tuple, a dict of keyword arguments, or the pair of both. Only sizes, strides
    and types matter: under `with torch.device("meta"):` neither weights nor inputs take memory.

    The file that --out writes is a problem set for `collect`, `sweep`, `select` and `predict`.

    \b
    kerncast torch shapes model.py
    kerncast torch shapes model.py:large --backward --json
    kerncast torch shapes model.py --no-bias --out problems.json
    kerncast collect gemm/inductor_cpp --problems problems.json --vary threads=1 --out data
    """
    model, inputs = example_of(file)
    found = shapes_of(model, inputs, backward=backward, bias=bias)
    if out is not None:
        found.save(out)
    if as_json:
        print_json(found.as_json())
        return
    draw(found.table) if found.products else echo("no matrix product")
    echo(*found.notes) if found.notes else None
    if out is not None:
        echo(f"next: kerncast collect FAMILY --problems {word(out)} --out data, with a family of `kerncast list family`")


@torch_verb.verb("validate", validate)
def validation(
    call: VerbCall,
    *,
    worst: Annotated[int, Help("How many of the worst products to list.", least=0)] = 5,
    as_json: Json = False,
) -> None:
    """Compare what a model chooses with max-autotune, on this machine.

    For each product: the chosen kernel, the kernels that stock max-autotune times and, with --sample, others. For a network:
    compile time and speed with stock settings, with max-autotune and with kerncast, run in turns in one process.

    MODEL is a folder or an id in the store. FILE.py is run, so name only a file that you trust. Exit code 1 if the chosen
    kernels have less than 97 % of the speed of max-autotune's.

    \b
    kerncast torch validate my-model --model-file network.py --picture picture.svg
    kerncast torch validate my-model --shapes problems.json --sample 20 --json
    kerncast torch validate my-model --shapes "lognormal:20;M=1:32;N=64:1024;K=64:1024" --vary dtype=fp32 \\
        --vary layout=rcr --vary threads=1
    """
    with steps() as progress:
        found = call(progress=progress)
    if as_json:
        print_json(found.as_json())
    else:
        if found.products:
            table(PRODUCT_HEADERS, found.product_rows(found.worst(worst) or found.products), right=("time", "max-autotune"))
            echo(found.headline())
        if found.modes:
            table(MODE_HEADERS, found.mode_rows(), right=MODE_HEADERS[1:])
    if not found.as_good:
        raise SystemExit(1)


@torch_verb.verb("report")
def report(file: Annotated[Path, Help(metavar="FILE.json")], *, as_json: Json = False) -> None:
    """Show what was decided in a program that ran with KERNCAST_REPORT=FILE.json.

    \b
    KERNCAST_INDUCTOR=1 KERNCAST_REPORT=decided.json TORCHINDUCTOR_MAX_AUTOTUNE=1 TORCHINDUCTOR_FREEZING=1 python serve.py
    kerncast torch report decided.json
    """
    found = Report.read(file)
    print_json(found.as_json()) if as_json else echo(*repr(found).splitlines())

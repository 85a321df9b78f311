"""`kerncast torch validate`: a model's choices against max-autotune on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from kerncast.app.api.arguments import assignments
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.io.arguments import Help
from kerncast.core.io.atomic import write_bytes
from kerncast.errors import InvalidValue, NotFound
from kerncast.library.problems import parse_vary, problem_set
from kerncast.models.model import Model
from kerncast.torch.enabling import models_of
from kerncast.torch.shapes import example_of
from kerncast.torch.validation import Validation


def validate(
    model: Annotated[Model | str | Path, Help(metavar="MODEL", names="model_folders")],
    *,
    model_file: Annotated[
        str | None,
        Help(
            "A network to compile in each way and run in turns. Its products are measured, too.", metavar="FILE.py[:FUNCTION]"
        ),
    ] = None,
    shapes: Annotated[
        str | Sequence[Mapping[str, Any]] | None,
        Help("Products to measure: a problem set as for `kerncast collect`, or a file.", metavar="SPEC", several=False),
    ] = None,
    vary: Annotated[
        Mapping[str, Any] | Sequence[str] | None,
        Help("With `shapes`, one more axis: threads=1,2. May be repeated.", metavar="NAME=VALUES"),
    ] = None,
    threads: Annotated[int | None, Help("Threads that torch may use. [default: as torch decides]", least=1)] = None,
    top_k: Annotated[int, Help("Kernels that are left for Inductor to time.", least=1)] = 1,
    sample: Annotated[
        int, Help("Other configs of each product to measure, to see how far the choice is from the best.", least=0)
    ] = 0,
    exhaustive: Annotated[
        int,
        Help("With `model_file`, also compile with a max-autotune of N kernels a product; takes long.", metavar="N", least=0),
    ] = 0,
    any_software: Annotated[bool, Help("Use the model although torch or the compiler is not that of its data.")] = False,
    picture: Annotated[str | Path | None, Help("With `model_file`: speed against compile time.", metavar="FILE.svg")] = None,
    store: Annotated[
        str | Path | None, Help("The store of MODEL. [default: KERNCAST_STORE, else the user's]", metavar="DIR")
    ] = None,
    seed: Annotated[int, Help(least=0)] = 0,
    progress: Wanted = "auto",
) -> Validation:
    """Measure what a model chooses and what max-autotune would: for the products of `shapes`, or for those of a network.

    `model_file` is `FILE.py[:function]`; the function returns a module and its inputs, which are compiled in each way and run
    in turns. `picture` is written as SVG.
    """
    if find_spec("torch") is None:
        raise NotFound.package("validating", "torch", "torch")
    if (model_file is None) == (shapes is None):
        raise InvalidValue("give either `model_file` or `shapes`")
    if model_file is None and (exhaustive or picture is not None or threads is not None):
        raise InvalidValue("`exhaustive`, `picture` and `threads` are for `model_file`: leave them out")
    if model_file is not None and vary:
        raise InvalidValue("`vary` is for `shapes`: leave it out")
    from kerncast.torch.validating import validate as run

    torch, (loaded,) = import_module("torch"), models_of(model, store)
    if threads is not None:
        torch.set_num_threads(threads)
    example = None if model_file is None else example_of(model_file)
    problems = _products_of(loaded, example) if example is not None else _given(loaded, shapes, vary, seed)
    with shown(progress) as show:
        found = run(
            loaded, problems, example, top_k=top_k, sample=sample, exhaustive=exhaustive, any_software=any_software, seed=seed,
            progress=show,
        )  # fmt: skip
    if picture is not None:
        write_bytes(Path(picture), found.picture().encode())
    return found


def _products_of(model: Model, example: tuple[Any, Any]) -> list[dict[str, Any]]:
    """The products of a network, on as many threads as torch has. On a CPU, Inductor packs weights whatever their layout is."""
    from kerncast.torch.shapes import shapes_of

    if "threads" not in model.family.environment.parameters:
        return [dict(item) for item in shapes_of(*example)]
    packed = {"layout": "rcr", "ldb": None, "threads": import_module("torch").get_num_threads()}
    found = [{**item, **packed} for item in shapes_of(*example) if item.get("batch", 1) == 1]
    return [{name: value for name, value in item.items() if value is not None} for item in found]


def _given(model: Model, shapes: Any, vary: Any, seed: int) -> list[dict[str, Any]]:
    if not isinstance(shapes, str):
        return [dict(item) for item in shapes]
    frame = problem_set(model.family, [shapes], parse_vary(model.family, assignments(vary)), seed=seed)
    return [{name: value for name, value in row.items() if value is not None} for row in frame.iter_rows(named=True)]

"""What Inductor's objects say, as plain values: its IR nodes, its choices, and the product that they compute.

Nothing here imports torch or changes an object. Objects are known by what they have, because their classes move between
versions of torch. What cannot be read is left out; a size that is not a number (a dynamic shape) is its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kerncast.library.families.torch_products import Described, worded

LONGEST_TEXT = 400
# The class of a choice, or of one of its bases, and its kind here.
KINDS = {
    "CppTemplateCaller": "cpp",
    "ExternKernelCaller": "extern",
    "TritonTemplateCallerBase": "triton",
    "TritonTemplateCaller": "triton",
    "CUTLASSTemplateCaller": "cutlass",
    "CUDATemplateCaller": "cutlass",  # its name before torch 2.10
    "ROCmTemplateCaller": "ck",
    "SubgraphChoiceCaller": "subgraph",
    "NVUniversalGemmCaller": "nv_universal_gemm",
    "CuteDSLTemplateCaller": "cutedsl",
}
ASSIGNMENT = re.compile(r"(\w+)=('[^']*'|[^,\s]+)")
ARGUMENTS_OF_A_SCORE = 5  # score, batch, head, query, key
TILE_SHAPE = re.compile(r"\((-?\d+), (-?\d+), (-?\d+)\)")


# -- tensors -------------------------------------------------------------------------------------------


def describe_inputs(nodes: Iterable[Any]) -> list[Described]:
    """The tensors that IR nodes stand for."""
    return [_tensor(node) for node in nodes]


def describe_layout(layout: Any) -> Described:
    """The tensor that a layout stands for."""
    return _tensor(layout)


def _tensor(node: Any) -> Described:
    """A node or a layout: the one has `get_size()`, the other `size`."""
    found: Described = {}
    for name, read in (("size", _numbers), ("stride", _numbers), ("dtype", _word), ("device", str)):
        value = _said(node, f"get_{name}", name)
        if value is not None:
            found[name] = read(value)
    return found


def _said(node: Any, method: str, attribute: str) -> Any:
    try:
        getter = getattr(node, method, None)
        return getter() if callable(getter) else getattr(node, attribute, None)
    except Exception:  # a layout that is not decided yet, a node without one
        return None


def _numbers(values: Iterable[Any]) -> list[int | str]:
    return [_number(value) for value in values]


def _number(value: Any) -> int | str:
    if type(value).__name__ == "SymInt":  # asking for its number would add a guard
        return str(value)[:LONGEST_TEXT]
    try:
        return int(value)
    except Exception:
        return str(value)[:LONGEST_TEXT]


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has not is its text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    number = _number(value) if type(value).__module__.startswith("sympy") else None
    return number if isinstance(number, int) else str(value)[:LONGEST_TEXT]


def describe_score_function(graph: Any) -> dict[str, int]:
    """The size of flex attention's score function, as AutoHeuristic counts it."""
    nodes = list(graph.nodes)
    arguments = [node for node in nodes if node.op == "placeholder"][:ARGUMENTS_OF_A_SCORE]
    return {"mod_nodes": len(nodes), "mod_args": sum(bool(node.users) for node in arguments)}


# -- choices -------------------------------------------------------------------------------------------


def describe_choice(choice: Any) -> Described:
    """A choice, whether it is rendered (`ChoiceCaller`) or not yet (`KernelTemplateChoice`).

    `kind` is `default` (Inductor's own C++ kernel), `tile` (one of kerncast's, with its `config`), `extern`, `triton` (with
    `template` and `params`), `cutlass`, `ck`, or the class for what is none of these.
    """
    inner = _unwrapped(choice)
    if _is_unrendered(inner):
        return _unrendered(inner)
    kind = _kind(inner)
    found: Described = {"kind": kind, "name": plain(_get(inner, "name")), "description": plain(_get(inner, "description"))}
    if kind == "cpp":
        return found | _cpp(_get(inner, "template"))
    if kind == "extern":
        return found | {"arguments": plain(_get(inner, "kwargs") or {})}
    if kind == "triton":
        return found | _triton(inner, str(found["name"]))
    return found | {"info": plain(_called(inner, "info_dict") or {})}


def _unwrapped(choice: Any) -> Any:
    """The choice inside the wrappers that prepare its inputs."""
    for _ in range(8):
        inner = getattr(choice, "__dict__", {}).get("_wrapped")
        if inner is None:
            break
        choice = inner
    return choice


def _is_unrendered(choice: Any) -> bool:
    return not hasattr(type(choice), "benchmark") and hasattr(choice, "params") and hasattr(choice, "template")


def _kind(choice: Any) -> str:
    names = [base.__name__ for base in type(choice).__mro__]
    return next((KINDS[name] for name in names if name in KINDS), names[0])


def _get(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:
        return None


def _called(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)()
    except Exception:
        return None


def _cpp(template: Any) -> Described:
    config = _get(template, "kerncast_config")
    found: Described = {"kind": "default"} if config is None else {"kind": "tile", "config": plain({"kind": "tile", **config})}
    found["template"] = type(template).__name__
    found["epilogue"] = _get(template, "epilogue_creator") is not None
    for name in ("has_bias", "alpha", "beta", "num_threads", "register_blocking"):
        value = _get(template, name)
        if value is not None:
            found[name] = plain(value)
    return found


def _unrendered(choice: Any) -> Described:
    """A `KernelTemplateChoice`: ATen's have a uid too."""
    uid, params = _uid(choice), _params(choice)
    name = uid.partition("::")[2] or uid
    if uid.startswith("aten::"):
        return {"kind": "extern", "name": name, "description": "", "arguments": params}
    kind = "triton" if uid.startswith("triton::") else type(_get(choice, "template")).__name__
    return {"kind": kind, "name": name, "description": "", "template": uid, "params": params}


def _uid(choice: Any) -> str:
    template = _get(choice, "template")
    return str(_get(template, "uid") or _get(template, "name") or "")


def _params(choice: Any) -> Described:
    params = _get(choice, "params")
    found = _called(params, "to_serializeable_dict") or _called(params, "to_kwargs") or {}
    # Those that all choices of a template share: ALLOW_TF32, alpha and beta of addmm; functions and layouts among them are not
    # parameters.
    shared = _get(choice, "extra_kwargs") or {}
    scalars = {name: value for name, value in shared.items() if isinstance(value, bool | int | float | str)}
    return {str(name): plain(value) for name, value in {**scalars, **found}.items()}


def _triton(choice: Any, name: str) -> Described:
    """Template and parameters: as torch 2.10 and later keep them, else from the choice's own notes."""
    annotations = _get(choice, "annotations")
    source = annotations.get("ktc") if isinstance(annotations, dict) else None
    told = {key: worded(value) for key, value in ASSIGNMENT.findall(str(_get(choice, "description") or ""))}
    if source is not None:
        return {"template": _uid(source), "params": {**told, **_params(source)}}
    # `triton_mm_12` is the twelfth kernel of the template `mm`.
    template = re.sub(r"_\d+$", "", name.removeprefix("triton_"))
    params: Described = {}
    info = _called(choice, "info_dict") or {}
    tile = TILE_SHAPE.fullmatch(str(info.get("tile_shape", "")))
    if tile:
        sizes = zip(("BLOCK_M", "BLOCK_K", "BLOCK_N"), map(int, tile.groups()), strict=True)
        params |= {axis: size for axis, size in sizes if size > 0}
    params |= {key: plain(value) for key, value in info.items() if key not in ("tile_shape", "backend")}
    if "allow_tf32" in params:
        params["ALLOW_TF32"] = params.pop("allow_tf32")
    return {"template": f"triton::{template}", "params": {**{key: worded(value) for key, value in params.items()}, **told}}

"""What Inductor's objects say, as plain values: its IR nodes, its choices, and the product that they compute.

Nothing here imports torch or changes an object. Objects are known by what they have, because their classes move between
versions of torch. What cannot be read is left out; a size that is not a number (a dynamic shape) is its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from kerncast.library.families.torch_products import Described, flex_problem, worded
from kerncast.measuring.backends.inductor.build import DTYPES, EPILOGUES

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
    return [describe_tensor(node) for node in nodes]


def describe_tensor(node: Any) -> Described:
    """The tensor that an IR node or a layout stands for: the one has `get_size()`, the other `size`."""
    told: Described = {}
    for name in ("size", "stride", "dtype", "device"):
        try:
            getter = getattr(node, f"get_{name}", None)
            value = getter() if callable(getter) else getattr(node, name, None)
        except Exception:  # a layout that is not decided yet, a node without one
            continue
        if value is not None:
            told[name] = [_number(item) for item in value] if name in ("size", "stride") else str(value).removeprefix("torch.")
    return told


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
    inner = choice
    for _ in range(8):  # inside the wrappers that prepare its inputs
        wrapped = getattr(inner, "__dict__", {}).get("_wrapped")
        inner = inner if wrapped is None else wrapped
    if not hasattr(type(inner), "benchmark") and hasattr(inner, "params") and hasattr(inner, "template"):
        return _unrendered(inner)
    names = [base.__name__ for base in type(inner).__mro__]
    kind = next((KINDS[name] for name in names if name in KINDS), names[0])
    found: Described = {"kind": kind, "name": plain(_get(inner, "name")), "description": plain(_get(inner, "description"))}
    if kind == "cpp":
        return found | _cpp(_get(inner, "template"))
    if kind == "extern":
        return found | {"arguments": plain(_get(inner, "kwargs") or {})}
    if kind == "triton":
        return found | _triton(inner, str(found["name"]))
    return found | {"info": plain(_called(inner, "info_dict") or {})}


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


CPU_DTYPES = {f"torch.{spelled}": name for name, spelled in DTYPES.items()}
ATTRIBUTES = {spelled: name for name, spelled in EPILOGUES.items()}
# Pointwise functions that Inductor fuses into the product, by the names of the operators that read it: Inductor has already
# taken gelu and silu apart.
ACTIVATIONS = {
    ("relu",): "relu",
    ("gelu",): "gelu",
    ("mul 0.5", "mul 0.7071"): "gelu",
    ("silu",): "silu",
    ("div", "neg"): "silu",
    ("mul", "sigmoid"): "silu",
}
# Operators that change neither values nor who needs them.
PASSED = {"view", "reshape", "_unsafe_view", "convert_element_type", "_to_copy"}
# Arguments of the operators that lower to the template: where the bias and the name of the activation are.
BIAS = {"_mkl_linear": 3, "_linear_pointwise": 2}
ATTRIBUTE = {"_linear_pointwise": 3}


class NotStatic(Exception):
    """A size is only known when the program runs."""


def problem_of(layout: Any, nodes: Sequence[Any], threads: int, node: Any = None, **options: Any) -> dict[str, Any] | str:
    """The problem that a call of the template's `add_choices` poses, or why it is none of the family.

    `node` is the operator in the graph, of which the epilogue is read; `options` are those of the call.
    """
    has_bias = bool(options.get("has_bias"))
    order = options.get("input_indices") or list(range(len(nodes)))
    x, w = (nodes[order[1]], nodes[order[2]]) if has_bias else (nodes[order[0]], nodes[order[1]])
    dtype = CPU_DTYPES.get(str(x.get_dtype()))
    if dtype is None or w.get_dtype() != x.get_dtype() or layout.dtype != x.get_dtype():
        return f"{x.get_dtype()} × {w.get_dtype()} → {layout.dtype} is none of {', '.join(CPU_DTYPES)}"
    try:
        m, k = _whole(x.get_size())
        n = _whole(w.get_size())[0 if options.get("trans_w") else 1]
        outer, inner = _strides(x, k)
    except NotStatic:
        return "its sizes are only known when the program runs (dynamic shapes)"
    except ValueError:
        return f"an operand has {len(x.get_size())} and {len(w.get_size())} dimensions, not two"
    if inner != 1 and k > 1:
        return "rows of the left operand are not contiguous"
    problem: dict[str, Any] = {"M": m, "N": n, "K": k, "dtype": dtype, "layout": "rcr", "threads": threads}
    if outer > k and m > 1:
        problem["lda"] = outer
    # Bias and activation, as far as they follow the product immediately and nothing else reads what is between.
    name = name_of(node)
    if has_bias or (name in BIAS and len(node.args) > BIAS[name] and node.args[BIAS[name]] is not None):
        problem["bias"] = True
    activation = ATTRIBUTES.get(node.args[ATTRIBUTE[name]]) if name in ATTRIBUTE and len(node.args) > ATTRIBUTE[name] else None
    while activation is None and node is not None:
        users = list(getattr(node, "users", ()))
        activation = ACTIVATIONS.get(tuple(sorted(map(_use, users))))
        node = users[0] if len(users) == 1 and name_of(users[0]) in PASSED else None
    return problem | ({"activation": activation} if activation else {})


def _use(node: Any) -> str:
    """An operator with the number that it multiplies by."""
    numbers = [item for item in getattr(node, "args", ()) if isinstance(item, float)]
    return f"{name_of(node)} {numbers[0]:.4g}" if numbers else name_of(node)


def name_of(node: Any) -> str:
    """`relu` for the operator aten.relu.default; empty for what is no operator."""
    target = getattr(node, "target", None)
    return str(getattr(getattr(target, "overloadpacket", target), "__name__", ""))


def _whole(sizes: Sequence[Any]) -> list[int]:
    found = []
    for size in sizes:
        try:
            found.append(int(size))
        except (TypeError, ValueError) as error:  # a symbol
            raise NotStatic from error
    return found


def _strides(x: Any, k: int) -> Sequence[int]:
    """Of the left operand; one whose layout is not decided yet becomes packed."""
    read = getattr(x, "maybe_get_stride", None) or getattr(x, "get_stride", None)
    strides = read() if read is not None else None
    return [k, 1] if strides is None else _whole(strides)


# Arguments of the operator: Q, K, V, the score function, the mask.
OPERANDS, SCORE, MASK = slice(0, 3), 3, 4
# Where the mask has the sizes of its blocks, from its end: queries, keys, the mask's own function.
BLOCKS = slice(-3, -1)


def flex_asked(node: Any = None) -> tuple[dict[str, Any] | str, tuple[int, int]]:
    """The problem of `flex_attention` that is being lowered, and the blocks of its mask; a text says why there is none.

    `node` is the operator in the graph; None: the one that Inductor lowers right now, in this thread.
    """
    try:
        if node is None:
            node = import_module("torch._inductor.virtualized").V.graph.current_node
        inputs = [_graph_tensor(item.meta["val"]) for item in node.args[OPERANDS]]
        rows, columns = node.args[MASK][BLOCKS]
        if type(rows) is not int or type(columns) is not int:
            return "the blocks of the mask are not known numbers", (0, 0)
        module = getattr(node.graph.owning_module, str(node.args[SCORE].target))
        return flex_problem(inputs, describe_score_function(module.graph)), (rows, columns)
    except Exception as error:  # an operator of another version
        return f"the operator cannot be read ({type(error).__name__}: {error})", (0, 0)


def _graph_tensor(value: Any) -> Described:
    return {"size": [_plain(n) for n in value.size()], "stride": [_plain(n) for n in value.stride()],
            "dtype": str(value.dtype).removeprefix("torch."), "device": str(value.device)}  # fmt: skip


def _plain(number: Any) -> int | str:
    """A dynamic size stays a text: asking for its number would fix it."""
    return number if type(number) is int else str(number)

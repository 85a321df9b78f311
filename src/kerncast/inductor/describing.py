"""What Inductor's objects say, as plain values: its IR nodes, its choices, and the product that they compute.

Nothing here imports torch or changes an object. Objects are known by what they have, because their classes move between
versions of torch. What cannot be read is left out; a size that is not a number (a dynamic shape) is its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Described = dict[str, Any]
"""A tensor: `size`, `stride`, `dtype`, `device`. A choice: `kind`, `name`, `description` and what its kind has."""

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
# Where X (M × K) and W (K × N) are among the inputs, the bias if there is one, and whether W is stored as N × K and packed.
OPERANDS: dict[str, tuple[int, int, int | None, bool]] = {
    "mm": (0, 1, None, False),
    "addmm": (1, 2, 0, False),
    "bmm": (0, 1, None, False),
    "baddbmm": (1, 2, 0, False),
    "packed_linear": (0, 2, None, True),
    "linear_unary": (0, 1, 2, True),
}
# oneDNN's names of the activations that gemm knows. Its gelu is exact where the algorithm is `none`, as gemm's is.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
ASSIGNMENT = re.compile(r"(\w+)=('[^']*'|[^,\s]+)")
ARGUMENTS_OF_A_SCORE = 5  # score, batch, head, query, key
TILE_SHAPE = re.compile(r"\((-?\d+), (-?\d+), (-?\d+)\)")
WORDS = {"True": True, "False": False, "None": None}


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
    told = {key: _worded(value) for key, value in ASSIGNMENT.findall(str(_get(choice, "description") or ""))}
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
    return {"template": f"triton::{template}", "params": {**{key: _worded(value) for key, value in params.items()}, **told}}


def _worded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip("'")
    if text in WORDS:
        return WORDS[text]
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def triton_config(template_uid: str, params: Mapping[str, object]) -> dict[str, Any] | None:
    """The config of `gemm/triton` that a template with these parameters is; None: the family has no such config."""
    from kerncast.families.inductor_templates import config_of

    return config_of(template_uid, {name: _worded(value) for name, value in params.items()})


# -- products ------------------------------------------------------------------------------------------


def gemm_problem(
    op_name: str, inputs: Sequence[Described], output: Described, choices: Sequence[Described] = ()
) -> dict[str, Any] | str:
    """The product that Inductor times under a name, in the parameters of gemm; a text says why gemm has no such product.

    `inputs` and `choices` are what `describe_inputs` and `describe_choice` found: a choice may know of an activation.
    """
    from kerncast.evaluating.solutions.torch_tiles import dtype_of

    if op_name not in OPERANDS:
        return f"{op_name or 'an op without a name'} is not a product that gemm has"
    x_at, w_at, bias_at, packed = OPERANDS[op_name]
    if len(inputs) <= max(x_at, w_at):
        return f"{op_name} has {len(inputs)} inputs"
    x, w = inputs[x_at], inputs[w_at]
    bias = inputs[bias_at] if bias_at is not None and bias_at < len(inputs) else None
    tensors = [x, w, output, *([bias] if bias else [])]
    if not all(_is_static(item) for item in (x, output)) or not _sizes(w):
        return "sizes or strides are not known numbers"
    names = {str(item.get("dtype")) for item in tensors}
    dtype = dtype_of(names.pop()) if len(names) == 1 else None
    if dtype is None:
        return f"dtypes {', '.join(str(item.get('dtype')) for item in tensors)}"
    shape = _shape(x["size"], w["size"][::-1] if packed else w["size"], output["size"])
    if isinstance(shape, str):
        return shape
    stored = _stored(shape, x, None if packed else w, output)
    if isinstance(stored, str):
        return stored
    epilogue = _epilogue(shape, bias, choices)
    return epilogue if isinstance(epilogue, str) else {**shape, "dtype": dtype, **stored, **epilogue}


def _sizes(item: Described) -> bool:
    size = item.get("size") or []
    return bool(size) and all(isinstance(value, int) and value > 0 for value in size)


def _is_static(item: Described) -> bool:
    stride = item.get("stride")
    return _sizes(item) and stride is not None and all(isinstance(value, int) for value in stride)


def _shape(x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> dict[str, int] | str:
    """M, N, K and the batch of X · W = Y."""
    if not (len(x) == len(w) == len(y) in (2, 3)):
        return f"{len(x)}, {len(w)} and {len(y)} dimensions"
    (*batch, m, k), (*of_w, also_k, n) = x, w
    if k != also_k or batch != of_w or list(y) != [*batch, m, n]:
        return f"sizes {list(x)} · {list(w)} = {list(y)} are not those of a product"
    return {"M": m, "N": n, "K": k, "batch": batch[0] if batch else 1}


def _stored(shape: Mapping[str, int], x: Described, w: Described | None, y: Described) -> dict[str, Any] | str:
    """`layout` and the leading dimensions of what has gaps; a `w` of None is packed, and counts as `nn.Linear`'s."""
    from kerncast.evaluating.solutions.torch_tiles import storage_of

    letters, leading = "", {}
    for name, item in (("lda", x), ("ldb", w), ("ldc", y)):
        if item is None:
            letters += "c"
            continue
        stride = item.get("stride") or []
        same = len(stride) == len(item["size"]) and all(isinstance(value, int) for value in stride)
        found = storage_of(item["size"], stride) if same else None
        if found is None:
            return f"strides {stride} of {item['size']} are neither by rows nor by columns"
        letters += found[0]
        if found[1] != item["size"][-1 if found[0] == "r" else -2]:
            leading[name] = found[1]
    if letters[2] != "r":
        # A column or a row of results is the same in both orders.
        if min(shape["M"], shape["N"]) > 1:
            return "the result is stored by columns"
        leading.pop("ldc", None)
    return {"layout": f"{letters[:2]}r", **leading}


def _epilogue(shape: Mapping[str, int], bias: Described | None, choices: Sequence[Described]) -> dict[str, Any] | str:
    """`bias` and `activation`, where there are any."""
    found: dict[str, Any] = {}
    if bias is not None:
        if not _is_row(shape, bias):
            return "what is added is not a vector of N elements"
        found["bias"] = True
    arguments = [item.get("arguments") or item for item in choices if item.get("kind") in ("extern", "default", "tile")]
    if any(item.get(name, 1) != 1 for item in arguments for name in ("alpha", "beta")):
        return "the product or what is added to it is scaled"
    named = [item["attr"] for item in arguments if "attr" in item and item["attr"] != "none"]
    if not named:
        return "an activation that no choice names" if any(item.get("epilogue") for item in choices) else found
    exact = all(item.get("algorithm") in (None, "", "none") for item in arguments)
    if named[0] not in ACTIVATIONS or not exact:
        return f"activation {named[0]}"
    return {**found, "activation": ACTIVATIONS[named[0]]}


def _is_row(shape: Mapping[str, int], bias: Described) -> bool:
    """Whether the same N elements are added to every row."""
    size, stride = bias.get("size") or [], bias.get("stride") or []
    if size == [shape["N"]]:
        return True
    rows = [1, *size[:-1]]
    repeated = len(size) == len(stride) and all(step == 0 or n == 1 for n, step in zip(size[:-1], stride[:-1], strict=True))
    return bool(size) and size[-1] == shape["N"] and (repeated or math.prod(rows) == 1)


# -- flex attention ------------------------------------------------------------------------------------


def flex_problem(inputs: Sequence[Described], mod: Mapping[str, int]) -> dict[str, Any] | str:
    """The problem of `flex_attention` that Inductor times, given the size of its score function (`mod_nodes`, `mod_args`)."""
    from kerncast.evaluating.solutions.torch_tiles import dtype_of

    if len(inputs) < 3 or not all(_is_static(item) and len(item["size"]) == 4 for item in inputs[:3]):
        return "sizes or strides are not known numbers"
    query, key, value = inputs[:3]
    (batch, heads, q_len, head_dim), (*own, kv_len, depth) = query["size"], key["size"]
    if own != [batch, heads] or depth != head_dim or value["size"] != key["size"]:
        return "queries, keys and values have different heads"
    if not {"mod_nodes", "mod_args"} <= set(mod):
        return "the score function is not visible"
    orders = {"bhmd": (heads * q_len * head_dim, q_len * head_dim, head_dim, 1),
              "bmhd": (heads * q_len * head_dim, head_dim, heads * head_dim, 1)}  # fmt: skip
    steps = [(step, n) for n, step in zip(query["size"], query["stride"], strict=True)]
    layout = next((name for name, wanted in orders.items() if _fits(steps, wanted)), None)
    dtype = dtype_of(str(query.get("dtype")))
    if layout is None or dtype is None:
        return f"queries with strides {query['stride']} and dtype {query.get('dtype')}"
    return {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len, "head_dim": head_dim, "dtype": dtype,
            "q_layout": layout, "mod_nodes": mod["mod_nodes"], "mod_args": mod["mod_args"]}  # fmt: skip


def _fits(steps: Sequence[tuple[int, int]], wanted: Sequence[int]) -> bool:
    """Whether strides are as wanted; that of an axis of length 1 does not matter."""
    return all(n == 1 or step == own for (step, n), own in zip(steps, wanted, strict=True))

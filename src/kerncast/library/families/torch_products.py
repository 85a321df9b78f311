"""What PyTorch says about a matrix product or an attention, in the parameters of gemm and flex_attention.

Tensors and choices come as plain values (`Described`): from Inductor's objects, from its logs, or from its tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kerncast.core import dtypes
from kerncast.library.families.gemm_triton import config_of
from kerncast.library.ops.gemm import gemm

Described = dict[str, Any]
"""A tensor: `size`, `stride`, `dtype`, `device`. A choice: `kind`, `name`, `description` and what its kind has."""

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
WORDS = {"True": True, "False": False, "None": None}


def worded(value: Any) -> Any:
    """A value that was written as text: a flag, a whole number, or the text without its quotes."""
    if not isinstance(value, str):
        return value
    text = value.strip("'")
    if text in WORDS:
        return WORDS[text]
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def triton_config(template_uid: str, params: Mapping[str, object]) -> dict[str, Any] | None:
    """The config of `gemm/triton` that a template with these parameters is; None: the family has no such config."""
    return config_of(template_uid, {name: worded(value) for name, value in params.items()})


def dtype_of(name: str) -> str | None:
    """gemm's name for `torch.float16` or `float16`; None: gemm has no such dtype."""
    known = dtypes.named(name)
    return known if known is not None and gemm.problem.parameters["dtype"].index(known) is not None else None


def storage_of(shape: Sequence[int], stride: Sequence[int]) -> tuple[str, int] | None:
    """`r` or `c` and the leading dimension of a matrix, or of a batch of them; None: it is stored in neither way.

    The rules are those of the importer of AutoHeuristic's logs.
    """
    *batch, rows, columns = shape
    *outermost, outer, inner = stride
    if (outer, inner) == (columns, 1):
        found = ("r", columns)
    elif (outer, inner) == (1, rows):
        found = ("c", rows)
    elif (inner == 1 and rows == 1) or (outer == 1 and columns == 1):
        found = ("r", columns)  # the stride of a dimension of size 1 does not matter
    elif inner == 1 and outer > columns:
        found = ("r", outer)
    elif outer == 1 and inner > rows:
        found = ("c", inner)
    else:
        return None
    letter, leading = found
    apart = leading * (rows if letter == "r" else columns)
    return found if not batch or batch[0] == 1 or outermost[0] == apart else None


# -- products ------------------------------------------------------------------------------------------


def gemm_problem(
    op_name: str, inputs: Sequence[Described], output: Described, choices: Sequence[Described] = ()
) -> dict[str, Any] | str:
    """The product that Inductor times under a name, in the parameters of gemm; a text says why gemm has no such product.

    `inputs` and `choices` are what `describe_inputs` and `describe_choice` found: a choice may know of an activation.
    """
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

"""What Inductor is about to lower on a CPU, as a problem of `gemm/inductor_cpp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kerncast.measuring.backends.inductor.templates import DTYPES, EPILOGUES

KINDS = {f"torch.{spelled}": name for name, spelled in DTYPES.items()}
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
    dtype = KINDS.get(str(x.get_dtype()))
    if dtype is None or w.get_dtype() != x.get_dtype() or layout.dtype != x.get_dtype():
        return f"{x.get_dtype()} × {w.get_dtype()} → {layout.dtype} is none of {', '.join(KINDS)}"
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
    return problem | epilogue_of(node, has_bias)


def epilogue_of(node: Any, has_bias: bool = False) -> dict[str, Any]:
    """Bias and activation of a product, as far as they follow it immediately and nothing else reads what is between."""
    name = name_of(node)
    bias = has_bias or (name in BIAS and len(node.args) > BIAS[name] and node.args[BIAS[name]] is not None)
    activation = ATTRIBUTES.get(node.args[ATTRIBUTE[name]]) if name in ATTRIBUTE and len(node.args) > ATTRIBUTE[name] else None
    while activation is None and node is not None:
        users = list(getattr(node, "users", ()))
        activation = ACTIVATIONS.get(tuple(sorted(map(_use, users))))
        node = users[0] if len(users) == 1 and name_of(users[0]) in PASSED else None
    return ({"bias": True} if bias else {}) | ({"activation": activation} if activation else {})


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

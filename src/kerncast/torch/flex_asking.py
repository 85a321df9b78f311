"""Which problem Inductor asks flex attention's configs for: its own question names only head size and dtype."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kerncast.library.families.torch_products import Described, flex_problem
from kerncast.torch.describing import describe_score_function

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
        inputs = [_tensor(item.meta["val"]) for item in node.args[OPERANDS]]
        rows, columns = node.args[MASK][BLOCKS]
        if type(rows) is not int or type(columns) is not int:
            return "the blocks of the mask are not known numbers", (0, 0)
        return flex_problem(inputs, _score_function(node)), (rows, columns)
    except Exception as error:  # an operator of another version
        return f"the operator cannot be read ({type(error).__name__}: {error})", (0, 0)


def _tensor(value: Any) -> Described:
    return {"size": [_plain(n) for n in value.size()], "stride": [_plain(n) for n in value.stride()],
            "dtype": str(value.dtype).removeprefix("torch."), "device": str(value.device)}  # fmt: skip


def _plain(number: Any) -> int | str:
    """A dynamic size stays a text: asking for its number would fix it."""
    return number if type(number) is int else str(number)


def _score_function(node: Any) -> dict[str, int]:
    module = getattr(node.graph.owning_module, str(node.args[SCORE].target))
    return describe_score_function(module.graph)

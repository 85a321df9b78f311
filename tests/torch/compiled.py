"""What Inductor itself reports when it compiles a model: every product that it lowers, and nothing is built or timed."""

from collections import Counter

from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import config, select_algorithm
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering

import torch


class _Lowered(Exception):
    """Raised when all products of a graph are lowered: C++ would be generated next."""


def reported(model, args, *, backward=False):
    """Counted (batch, M, N, K, dtype, strides of A and B): the strides are None where Inductor packs the weights."""
    found = Counter()

    def select(selector, name, choices, input_nodes, layout, *rest, **options):
        found[_facts(name, input_nodes, layout)] += 1
        return original(selector, name, choices[-1:], input_nodes, layout, *rest, **options)

    def stop(*_, **__):
        raise _Lowered

    def inner(graph, example_inputs, **options):
        try:
            compile_fx_inner(graph, example_inputs, **options)
        except Exception as error:
            # A frozen graph has lost its weights and cannot run; one for training runs as it is, to get to the backward pass.
            if not backward or "_Lowered" not in repr(error):
                raise
        return make_boxed_func(graph.forward)

    def backend(graph, example_inputs):
        return compile_fx(graph, example_inputs, inner_compile=inner)

    original = select_algorithm.AlgorithmSelectorCache.__call__
    kept = GraphLowering.codegen
    select_algorithm.AlgorithmSelectorCache.__call__, GraphLowering.codegen = select, stop
    torch._dynamo.reset()
    try:
        with (
            config.patch(max_autotune=True, max_autotune_gemm_backends="ATEN", freezing=not backward, fx_graph_cache=False),
            torch.set_grad_enabled(backward),
        ):
            result = torch.compile(model, backend=backend)(*args)
            if backward:
                result.backward(torch.ones_like(result))
    except Exception as error:
        if "_Lowered" not in repr(error):
            raise
    finally:
        select_algorithm.AlgorithmSelectorCache.__call__, GraphLowering.codegen = original, kept
        torch._dynamo.reset()
    return found


def _facts(name, nodes, layout):
    *batch, m, n = map(int, layout.size)
    packed = name.startswith(("packed_linear", "linear"))
    operands = nodes[:1] if packed else nodes[-2:]
    strides = tuple(strides_of(tuple(map(int, node.get_size())), tuple(map(int, node.get_stride()))) for node in operands)
    k = int(operands[0].get_size()[-1])
    return (
        batch[0] if batch else 1,
        m,
        n,
        k,
        str(layout.dtype).removeprefix("torch."),
        strides[0],
        None if packed else strides[1],
    )


def strides_of(size, stride):
    """The strides that matter: not those of a side of one element."""
    return tuple(None if side == 1 else step for side, step in zip(size, stride, strict=True))

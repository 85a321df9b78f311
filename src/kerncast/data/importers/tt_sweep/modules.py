"""The sweep modules of TTNN's ops: their names and the names of their parameters, for reading and for writing vectors.

Unary functions and concatenate_heads have modules in tt-metal. Those of create_qkv_heads and paged_sdpa_decode are files of
the TTNN op runtime predictor (`dataset_sweeps/`), which are copied into tt-metal's folder of sweeps.
"""

from __future__ import annotations

from kerncast.library.ops.eltwise_unary import FUNCTIONS

CONCATENATE_HEADS = "transformer.concatenate_heads.concatenate_heads"
CREATE_QKV_HEADS = "create_qkv_heads_sweep"
PAGED_SDPA_DECODE = "paged_sdpa_decode_sweep"

# Functions whose module is not called after them.
_OTHERWISE = {"sqrt": "sqrt.sqrt_interleaved", "rsqrt": "rsqrt.rsqrt_pytorch2"}
UNARY = {name: f"eltwise.unary.{_OTHERWISE.get(name, f'{name}.{name}')}" for name in FUNCTIONS}
"""Function → its sweep module."""

# How modules of unary functions name dtype, layout and memory of the input; and what some of them take besides.
USUAL = ("input_a_dtype", "input_a_layout", "input_a_memory_config")
UNARY_NAMES = {
    "tanh": ("input_dtype", "input_layout", "input_memory_config"),
    "hardshrink": ("input_a_dtype", "input_layout", "input_a_memory_config"),
    "hardtanh": ("input_a_dtype", "input_layout", "input_a_memory_config"),
}
UNARY_EXTRA = {
    "exp": {"use_safe_nums": "True"},
    "tanh": {"accuracy": "False"},
    "elu": {"alpha": "0.5"},
    "leaky_relu": {"negative_slope": "0.01"},
}


def unary_function(module: str) -> str | None:
    """The function that a module runs: `eltwise.unary.exp.exp`, `eltwise.unary.sqrt.sqrt_interleaved`, `exp_sweep`."""
    *folders, own = module.split(".")
    for name in (own, own.removesuffix("_sweep"), *folders[-1:]):
        if name in FUNCTIONS:
            return name
    return None

"""Triton's tiled matmul as PyTorch Inductor's templates have it, with the vendor library's kernel as one more candidate.

A config without the optional parameters is Inductor's plain template with its usual arguments. Of a template's other
arguments, EVEN_K follows from K and BLOCK_K, and ALLOW_TF32 is the problem's `tf32`. Two templates have no tile of their own:
`decompose_k` multiplies k_split parts of K as a batch and adds them up, `contiguous` copies B first. Their products are the
library's, so their kind is `library`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kerncast.core.expr import Expr, Namespace, ceil, ceil_div, log2, maximum, minimum, mod, where
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical, Choice, Int, Parameter, PowerOfTwo
from kerncast.core.space import Constraint
from kerncast.library.families.product_tiles import (
    PARAMETERS,
    Operands,
    is_triton,
    kernel_source_parameter,
    library_features,
    library_hints,
    shared_memory_fits,
    storage_hints,
    tile_features,
)
from kerncast.library.families.serving_tiles import hardware_numbers
from kerncast.library.ops.attention import flex_attention
from kerncast.library.ops.gemm import gemm, mixed_mm, pad_mm

# Not in `PARAMETERS`, which other families share. All are optional: most configs are of the plain template.
TEMPLATE_PARAMETERS: dict[str, Parameter] = {
    "template": Categorical(
        {"mm": 0, "persistent_tma": 1, "persistent": 2, "blackwell_persistent_tma": 3, "decompose_k": 4, "contiguous": 5},
        usual="mm",
        doc="which of Inductor's templates; bmm is mm with a batch",
    ),
    "GROUP_M": Int(1, 1024, usual=8, doc="rows of tiles that are computed together, to share strips of B"),
    "k_split": Int(1, 4096, usual=1, doc="parts of K that decompose_k multiplies as a batch"),
    "EPILOGUE_SUBTILE": PowerOfTwo(1, 8, usual=1, doc="parts in which a Blackwell kernel stores its tile"),
    # AMD's own arguments.
    "matrix_instr_nonkdim": Choice(0, 4, 16, 32, usual=16, doc="size of the matrix instruction; 0: any"),
    "waves_per_eu": Int(0, 16, usual=0, doc="waves per execution unit that the compiler aims at; 0: any"),
    "kpack": Choice(1, 2, usual=1, doc="elements along K that are packed for one instruction"),
}


def _operands(p: Namespace) -> Operands:
    return Operands(p.element_bytes, p.element_bytes, p.element_bytes, p.batch)


def _without_tile(c: Namespace) -> Expr:
    return (c.template == "decompose_k") | (c.template == "contiguous")


def _is_persistent(c: Namespace) -> Expr:
    return (c.template == "persistent_tma") | (c.template == "persistent") | (c.template == "blackwell_persistent_tma")


class Triton(Family):
    id = "gemm/triton"
    doc = "Triton matmul templates, and the vendor library's kernel"
    op = gemm
    # A setting of the process, not of the tensors; it matters only on devices with tensor cores.
    above_peak = ("tf32",)
    environment_parameters = {"tf32": Bool(default=False, doc="fp32 operands may be rounded to TF32 for the tensor cores")}
    parameters = PARAMETERS | TEMPLATE_PARAMETERS
    library = {"kind": "library"}

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        yield shared_memory_fits(c, hw, _operands(p))
        yield Constraint("split_k", "Triton's matmul templates do not divide K: leave split_k at 1", p.split_k == 1)
        yield Constraint(
            "template_kind",
            "the templates decompose_k and contiguous have no tile: their kind must be library, that of the others triton",
            (c.template == "mm") | (is_triton(c) != _without_tile(c)),
        )
        yield Constraint(
            "tile_arguments",
            "GROUP_M, EPILOGUE_SUBTILE and AMD's arguments are those of a tile: with kind library, leave them out",
            is_triton(c) | ((c.GROUP_M == 8) & (c.EPILOGUE_SUBTILE == 1) & (c.matrix_instr_nonkdim == 16)
                            & (c.waves_per_eu == 0) & (c.kpack == 1)),
        )  # fmt: skip
        yield Constraint(
            "k_split", "k_split divides K into equal parts for the template decompose_k: leave it out for others",
            where(c.template == "decompose_k", (c.k_split > 1) & (mod(p.K, c.k_split) == 0), c.k_split == 1) != 0,
        )  # fmt: skip
        yield Constraint("one_product", "decompose_k computes one product: its batch must be 1",
                         (c.template != "decompose_k") | (p.batch == 1))  # fmt: skip

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        size = _operands(p)
        return {
            **tile_features(p, c, hw, size),
            **storage_hints(p, hw, p.batch),
            "tf32": p.tf32,
            **_template_features(p, c, hw, size),
        }


def _template_features(p: Namespace, c: Namespace, hw: Namespace, size: Operands) -> Mapping[str, Expr]:
    """All of them read an optional parameter: a model of configs without these does not have them."""
    tiles_m, tiles_n = ceil_div(p.M, c.BLOCK_M), ceil_div(p.N, c.BLOCK_N)
    blocks = tiles_m * tiles_n * size.batch
    # What the blocks of one wave read: rows of A in the group, and the columns of B that are left for the rest.
    rows = minimum(c.GROUP_M, tiles_m)
    columns = minimum(ceil_div(minimum(blocks, hw.num_cus), rows), tiles_n)
    strip = (rows * c.BLOCK_M * size.a + columns * c.BLOCK_N * size.b) * p.K
    turns = ceil_div(blocks, hw.num_cus)
    part = ceil_div(p.K, c.k_split)
    partial_sums = p.M * p.N * 4 * c.k_split
    return {
        **{name: getattr(c, name) for name in TEMPLATE_PARAMETERS},
        "persistent": 1 * _is_persistent(c),
        "tiles_per_program": where(_is_persistent(c), turns, 0),
        "last_turn_fill": where(_is_persistent(c), blocks / (turns * hw.num_cus), 0),
        "group_fill": where(is_triton(c), tiles_m / (ceil_div(tiles_m, c.GROUP_M) * c.GROUP_M), 0),
        "log2_group_strip_bytes": where(is_triton(c), log2(1 + strip), 0),
        "k_part": where(c.k_split > 1, part, 0),
        "log2_partial_sums_ns": log2(1 + where(c.k_split > 1, 2 * partial_sums / hw.memory_bandwidth_gb_s, 0)),
        "products_over_cus": where(
            c.k_split > 1, c.k_split * ceil_div(p.M, 64) * ceil_div(p.N, 64) / maximum(hw.num_cus, 1), 0
        ),
    }


triton = Triton()


# Inductor's names, without what stands before `::`.
TEMPLATES = {
    "mm": "mm",
    "bmm": "mm",
    "mm_persistent_tma": "persistent_tma",
    "mm_persistent": "persistent",
    "blackwell_ws_persistent_device_tma": "blackwell_persistent_tma",
    "decompose_k": "decompose_k",
    "contiguous_mm": "contiguous",
    "contiguous_addmm": "contiguous",
}
# Names that ATen's products have; the same with another type of result, or scaled, are other ops.
LIBRARY = ("mm", "addmm", "bias_addmm", "bmm", "baddbmm")
ATEN = "aten"
# The arguments of a tile.
TILE = tuple(name for name in (*PARAMETERS, *TEMPLATE_PARAMETERS) if name not in ("kind", "template", "k_split"))


def config_of(template_uid: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config that a template with these arguments is; None: the family has no such config.

    `template_uid` is `triton::mm`, `decompose_k` or `aten::mm`. Arguments that the family does not declare are ignored:
    they follow from others (EVEN_K, NUM_SMS), are part of the problem (ALLOW_TF32), or are the same for all (ACC_TYPE).
    """
    backend, _, name = template_uid.rpartition("::")
    if backend == ATEN:
        return {**triton.library} if name in LIBRARY else None
    template = TEMPLATES.get(name)
    if template is None:
        return None
    without_tile = template in ("decompose_k", "contiguous")
    config: dict[str, Any] = {"kind": "library" if without_tile else "triton", "template": template}
    for key in () if template == "contiguous" else ("k_split",) if without_tile else TILE:
        value = arguments.get(key)
        if value is None and key in TEMPLATE_PARAMETERS and key != "k_split":
            continue
        if triton.parameters[key].index(value) is None:
            return None
        config[key] = value
    return {key: value for key, value in config.items() if not _is_usual(key, value)}


def _is_usual(key: str, value: Any) -> bool:
    """Whether a value is what leaving the parameter out means."""
    rule = TEMPLATE_PARAMETERS.get(key)
    index = None if rule is None else rule.index(value)
    return rule is not None and index is not None and rule.number(index) == rule.inactive


class GemmLibrary(Family):
    id = "gemm/library"
    doc = "a framework's or library's own GEMM, by the code path that ran"
    op = gemm
    parameters = {"kernel_source": kernel_source_parameter()}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        tiles = library_features(p, hw, gemm.work(p), p.batch)
        return {"kernel_source": c.kernel_source, **tiles, **hardware_numbers(hw)}


gemm_library = GemmLibrary()


class MixedMmLibrary(Family):
    id = "mixed_mm/library"
    doc = "a framework's or library's own weight-only product, by the code path that ran"
    op = mixed_mm
    parameters = {"kernel_source": kernel_source_parameter()}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        tiles = library_features(p, hw, mixed_mm.work(p))
        return {"kernel_source": c.kernel_source, **tiles, **hardware_numbers(hw)}


mixed_mm_library = MixedMmLibrary()


def _mixed_operands(p: Namespace) -> Operands:
    return Operands(p.element_bytes, p.b_bytes, p.element_bytes)


class MixedMmTriton(Family):
    id = "mixed_mm/triton"
    doc = "Triton matmul templates that widen B as they load it, and the library's product of a widened copy"
    op = mixed_mm
    parameters = PARAMETERS
    library = {"kind": "library"}

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        yield shared_memory_fits(c, hw, _mixed_operands(p))

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        # The library reads B, writes a copy in A's type and reads that: three passes where a template has one.
        widened = p.K * p.N * (p.b_bytes + 2 * p.element_bytes)
        return {
            **tile_features(p, c, hw, _mixed_operands(p)),
            **library_hints(p, hw),
            "library_widening_bytes": (c.kind == "library") * widened,
        }


mixed_mm_triton = MixedMmTriton()


class PadMmInductor(Family):
    id = "pad_mm/inductor"
    doc = "multiply as it is, or pad, multiply and slice"
    op = pad_mm
    parameters = {"choice": Categorical({"orig": 0, "pad": 1}, doc="orig multiplies as it is, pad pads first")}

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        pad = c.choice == "pad"
        m, n, k = p.M + p.pad_m, p.N + p.pad_n, p.K + p.pad_k
        a_padded, b_padded = (p.pad_m + p.pad_k) > 0, (p.pad_n + p.pad_k) > 0
        # A copy reads the old operand and writes the new one.
        copied = (a_padded & ~p.a_prepadded) * (p.M * p.K + m * k) + (b_padded & ~p.b_prepadded) * (p.K * p.N + k * n)
        cut = (p.pad_m + p.pad_n > 0) * 2 * p.M * p.N
        copy_ns = (copied + cut) * p.element_bytes / hw.memory_bandwidth_gb_s
        return {
            "choice": c.choice,
            "copied_bytes": where(pad, (copied + cut) * p.element_bytes, 0),
            "log2_copy_ns": log2(1 + where(pad, copy_ns, 0)),
            "work_ratio": where(pad, m * n * k / (p.M * p.N * p.K), 1),
            "unaligned_k": where(pad, 0, p.pad_k > 0),
            "unaligned_n": where(pad, 0, p.pad_n > 0),
            "unaligned_m": where(pad, 0, p.pad_m > 0),
        }


pad_mm_inductor = PadMmInductor()


class FlexAttentionTriton(Family):
    id = "flex_attention/triton"
    doc = "Triton's flex attention template"
    op = flex_attention
    parameters = {
        "BLOCK_M": PowerOfTwo(16, 512, doc="queries that one program computes"),
        "BLOCK_N": PowerOfTwo(16, 512, doc="keys and values of one step"),
        "num_stages": Int(1, 8, doc=PARAMETERS["num_stages"].doc),
        "num_warps": PowerOfTwo(1, 16),
    }

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        blocks = ceil_div(p.q_len, c.BLOCK_M) * p.batch * p.heads
        waves = blocks / hw.num_cus
        steps = ceil_div(p.kv_len, c.BLOCK_N)
        query = c.BLOCK_M * p.head_dim * p.element_bytes
        key_value = 2 * c.BLOCK_N * p.head_dim * p.element_bytes
        threads = c.num_warps * hw.wavefront_size
        return {
            **{name: getattr(c, name) for name in self.parameters},
            "blocks": blocks,
            "kv_steps": steps,
            "waves": waves,
            "wave_quantization": waves / ceil(waves),
            "query_fill": p.q_len / (ceil_div(p.q_len, c.BLOCK_M) * c.BLOCK_M),
            "key_fill": p.kv_len / (steps * c.BLOCK_N),
            "even_kv": 1 * (mod(p.kv_len, c.BLOCK_N) == 0),
            # Scores and the running result live in registers, in fp32.
            "scores_per_thread": c.BLOCK_M * c.BLOCK_N / threads,
            "accumulator_per_thread": c.BLOCK_M * p.head_dim / threads,
            "pipeline_bytes": query + key_value * c.num_stages,
            "pipeline_ratio": (query + key_value * c.num_stages) / hw.smem_per_block_bytes,
            "kv_traffic_bytes": blocks * 2 * p.kv_len * p.head_dim * p.element_bytes,
            "work_per_wave": c.BLOCK_M * p.kv_len * p.head_dim * ceil(waves),
        }


flex_attention_triton = FlexAttentionTriton()

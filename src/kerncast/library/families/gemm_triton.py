"""Triton's tiled matmul as PyTorch Inductor's templates have it, with the vendor library's kernel as one more candidate.

A config without the optional parameters is Inductor's plain template with its usual arguments. Of a template's other
arguments, EVEN_K follows from K and BLOCK_K, and ALLOW_TF32 is the problem's `tf32`. Two templates have no tile of their own:
`decompose_k` multiplies k_split parts of K as a batch and adds them up, `contiguous` copies B first. Their products are the
library's, so their kind is `library`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerncast.core.expr import Expr, Namespace, ceil_div, log2, maximum, minimum, mod, where
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical, Choice, Int, Parameter, PowerOfTwo
from kerncast.core.space import Constraint
from kerncast.library.families.library_tiles import storage_hints
from kerncast.library.families.triton_tiles import PARAMETERS, Operands, is_triton, shared_memory_fits, tile_features
from kerncast.library.ops.gemm import gemm

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

"""Which config of `gemm/triton` a template of PyTorch Inductor with its arguments is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncast.library.families.gemm_triton import TEMPLATE_PARAMETERS, triton
from kerncast.library.families.triton_tiles import PARAMETERS

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

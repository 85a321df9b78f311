"""The element types of a model's weights and cache, from its config and from what the caller asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kerncast.core import dtypes
from kerncast.errors import InvalidValue, quoted
from kerncast.estimating.decoder import Formats
from kerncast.estimating.fields import Fields

ACTIVATIONS = ("fp16", "bf16", "fp32")
CACHES = ("fp16", "bf16", "fp8", "int8")
# Formats of projections; the others are for experts alone.
LINEAR = ("fp16", "bf16", "fp8", "fp8_block", "nvfp4", "int8", "int4_wo", "int8_wo")
# How quantisers call them.
ALGORITHMS = {"fp8": "fp8", "fp8_pb_wo": "fp8_block", "fp8_block_scales": "fp8_block", "nvfp4": "nvfp4", "nvfp4_awq": "nvfp4",
              "w4a16_awq": "int4_wo", "w4a8_awq": "w4afp8", "w8a8_sq_per_channel": "int8", "w8a16": "int8_wo",
              "w4a16": "int4_wo", "mxfp4": "w4a16_mxfp4", "fbgemm_fp8": "fp8"}  # fmt: skip
NOT_CONVERTED = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
# Bytes of a weight of what is not a dtype of its own here.
INT8_WEIGHTS = 1.0 + 2.0 / 128


def weight_bytes(name: str) -> float:
    """Bytes of one weight of a format, its share of the scales included."""
    return INT8_WEIGHTS if name == "int8_wo" else dtypes.BYTES[name]


def activation_type(name: str, activations: str) -> str:
    """The type that weights of a format are multiplied in."""
    if name == "int8_wo":
        return activations
    return dtypes.MULTIPLIED_AS.get(name, name)


def formats_of(fields: Fields, outer: Fields, beside: Fields | None) -> tuple[Formats, str | None]:
    """What the config says, and what it says that is not known (which matters only if the caller does not say it instead)."""
    stated = fields.present("dtype", "torch_dtype")
    text = fields.text(stated) if stated else outer.text(outer.present("dtype", "torch_dtype") or "dtype")
    activations = dtypes.named(text) if text is not None else "bf16"
    if activations == "fp32":
        activations = "bf16"  # saved in 32 bits, served in 16
    if activations not in ACTIVATIONS:
        raise InvalidValue(f"{fields.source}: dtype must be one of {', '.join(ACTIVATIONS)}, got '{quoted(text)}': correct it")
    plain = Formats(activations, activations, activations, activations, activations)
    quantised = outer.inner("quantization_config") or fields.inner("quantization_config")
    if quantised is None and beside is not None:
        quantised = beside.inner("quantization")
    return (plain, None) if quantised is None else _quantised(plain, quantised)


def _quantised(plain: Formats, fields: Fields) -> tuple[Formats, str | None]:
    found = _algorithm(fields)
    cache = _cache(fields)
    formats = plain if cache is None else replace(plain, cache=cache)
    if found is None:
        method = fields.text("quant_algo") or fields.text("quant_method") or "unnamed"
        return formats, f"the quantisation '{quoted(method, 80)}' is not known: give `dtype`"
    kept = [item for name in NOT_CONVERTED for item in fields.items(name) or () if isinstance(item, str)]
    formats = replace(formats, experts=found, dynamic=not _static(fields))
    if found in LINEAR:
        if not any("shared_expert" in item and not item.endswith("_gate") for item in kept):
            formats = replace(formats, mlp=found)
        if not any("self_attn" in item and "norm" not in item for item in kept):
            formats = replace(formats, attention=found)
    return formats, None


def _static(fields: Fields) -> bool:
    """Whether the scales of activations were found beforehand, as modelopt does for fp8."""
    groups = fields.inner("config_groups")
    group = None if groups is None else next((groups.inner(name) for name in groups.values), None)
    activations = None if group is None else group.inner("input_activations")
    if activations is not None:
        return not activations.flag("dynamic", True)
    return fields.text("activation_scheme") == "static" or (fields.text("quant_algo") or "").lower() == "fp8"


def _algorithm(fields: Fields) -> str | None:
    """The format of quantised weights; None: not known."""
    stated = (fields.text("quant_algo") or "").lower()
    method = (fields.text("quant_method") or "").lower()
    if stated:
        return ALGORITHMS.get(stated)
    if method == "fp8":
        return "fp8_block" if fields.items("weight_block_size") else "fp8"
    if method in ("awq", "gptq", "auto-round", "compressed-tensors", "modelopt"):
        return _by_bits(fields)
    return ALGORITHMS.get(method)


def _by_bits(fields: Fields) -> str | None:
    groups = fields.inner("config_groups")
    if groups is None:
        bits = fields.whole("bits", "w_bit", default=0, least=0, most=64)
        return {4: "int4_wo", 8: "int8_wo"}.get(bits)
    group = next((inner for name in groups.values if (inner := groups.inner(name)) is not None), None)
    weights = None if group is None else group.inner("weights")
    if group is None or weights is None:
        return None
    bits, kind = weights.whole("num_bits", default=0, least=0, most=64), weights.text("type")
    if group.values.get("input_activations") is None:
        return {(4, "int"): "int4_wo", (8, "int"): "int8_wo"}.get((bits, kind or ""))
    eight = "fp8_block" if weights.text("strategy") == "block" else "fp8"
    return {(8, "float"): eight, (8, "int"): "int8", (4, "float"): "nvfp4"}.get((bits, kind or ""))


def _cache(fields: Fields) -> str | None:
    stated = (fields.text("kv_cache_quant_algo") or "").lower()
    scheme = fields.values.get("kv_cache_scheme")
    eight = isinstance(scheme, dict) and scheme.get("num_bits") == 8
    if stated in ("fp8", "int8"):
        return stated
    return "fp8" if eight else None


def asked(formats: Formats, dtype: str | None, kv_dtype: str | None, has_experts: bool) -> Formats:
    """The formats with what the caller asks for instead."""
    if kv_dtype is not None:
        formats = replace(formats, cache=_one_of("kv_dtype", kv_dtype, CACHES))
    if dtype is None:
        return formats
    known = [*LINEAR, *(name for name in dtypes.MULTIPLIED_AS if name not in LINEAR)]
    name = _one_of("dtype", dtype, known)
    if name not in LINEAR:
        if not has_experts:
            raise InvalidValue(
                f"`dtype={name}` is a format of experts, and the model has none: take one of {', '.join(LINEAR)}"
            )
        return replace(formats, experts=name)
    if name in ACTIVATIONS:
        cache = formats.cache if formats.cache not in ACTIVATIONS else name
        return Formats(
            activations=name, attention=name, mlp=name, experts=name, cache=cache if kv_dtype is None else formats.cache
        )
    return replace(formats, attention=name, mlp=name, experts=name)


def _one_of(argument: str, given: str, known: Iterable[str]) -> str:
    names = list(known)
    name = given if given in names else dtypes.named(given)
    if name not in names:
        raise InvalidValue(f"`{argument}` must be one of {', '.join(names)}, got '{quoted(given)}'")
    return name

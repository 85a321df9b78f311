"""The C++17 header around the C one: problems and configs as types, answers as values, contexts that free themselves."""

from __future__ import annotations

import re

from kerncast.core.io.c import comment, filled, identifiers, with_prefix
from kerncast.core.parameters import Bool, Categorical, Parameter
from kerncast.core.space import Space
from kerncast.models.statuses import C_STATUSES
from kerncast.models.tier import C_TIERS
from kerncast.native.header import title
from kerncast.native.lower import Artefact
from kerncast.native.packaged import packaged


def _type_name(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"\W|_", name) if word) or "Label"


def _enum_types(space: Space, taken: list[str]) -> dict[str, str]:
    """The name of an enum class for each categorical parameter, different from all field names."""
    labelled = [name for name, parameter in space.parameters.items() if isinstance(parameter, Categorical)]
    names = identifiers(map(_type_name, labelled), ["Problem", "Config", "found", "c", "to_c", "from_c", *taken])
    return dict(zip(labelled, names, strict=True))


def _enum(type_name: str, parameter: Parameter) -> str:
    names = identifiers(label for label, _ in parameter.codes)
    labels = ", ".join(f"{name} = {code}" for name, (_, code) in zip(names, parameter.codes, strict=True))
    return f"    enum class {type_name} : std::int64_t {{ {labels} }};\n"


def _struct(struct: str, space: Space, prefix: str) -> str:
    """Fields in declared order; what has no default, or does not always apply, is optional."""
    c_type, missing = f"{prefix}_{struct.lower()}", with_prefix("KERNCAST_MISSING", prefix)
    names = identifiers(space.parameters)
    types = _enum_types(space, names)
    fields, to_c, from_c = [], [], []
    for own, (name, parameter) in zip(names, space.parameters.items(), strict=True):
        kind = types.get(name) or ("bool" if isinstance(parameter, Bool) else "std::int64_t")
        said = f" // {comment(parameter.doc)}" if parameter.doc else ""
        fields.append(f"    std::optional<{kind}> {own};{said}")
        to_c.append(f"        if ({own}) c.{own} = static_cast<std::int64_t>(*{own});")
        from_c.append(f"        if (c.{own} != {missing}) found.{own} = static_cast<{kind}>(c.{own});")
    enums = "".join(_enum(types[name], space.parameters[name]) for name in types)
    return filled(
        packaged("struct.hpp"),
        prefix,
        struct=struct,
        c_type=c_type,
        fields=enums + "\n".join(fields),
        to_c="\n".join(to_c),
        from_c="\n".join(from_c),
    )


def _tier(name: str) -> str:
    return "automatic" if name == "auto" else name  # a word of the language


def cpp_header(artefact: Artefact, prefix: str) -> str:
    """The text of `PREFIX.hpp`."""
    family = artefact.model.family
    return filled(
        packaged("artefact.hpp"),
        prefix,
        title=title(artefact),
        statuses="\n".join(f"    {status} = {prefix.upper()}_{status.upper()}," for status in C_STATUSES),
        tiers="\n".join(f"    {_tier(name)} = {prefix.upper()}_TIER_{name.upper()}," for name in C_TIERS),
        problem_struct=_struct("Problem", family.problem, prefix),
        config_struct=_struct("Config", family.config, prefix),
    )

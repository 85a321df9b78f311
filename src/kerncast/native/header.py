"""The C and C++ headers of an artefact: problems and configs as structs with named fields, labels as constants."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from kerncast.core.io.quoting import c_integer, comment, filled, identifiers, with_prefix
from kerncast.core.parameters import Bool, Categorical, Parameter
from kerncast.core.space import Space
from kerncast.models.answer import C_STATUSES, C_TIERS
from kerncast.native import packaged
from kerncast.native.lower import Artefact

# Increase it whenever a struct or a function of the interface changes.
INTERFACE = 2
MESSAGE_BYTES = 240
# Pins that a context has room for; an export may have any number.
MOST_PINS = 1024
BLOCKS = ("title", "schema", "labels", "enumerations", "problem_fields", "config_fields", "calls")


def schema_number(artefact: Artefact) -> int:
    """A hash of what header and library must agree on: parameters in order, their codes, and the interface."""
    family = artefact.model.family
    text = [f"interface {INTERFACE}", family.id]
    for space in (family.problem, family.config):
        for name, parameter in space.parameters.items():
            text.append(f"{space.namespace}.{name} {parameter.describe()} {parameter.codes} {parameter.default}")
    return int.from_bytes(hashlib.blake2b("\n".join(text).encode(), digest_size=8).digest(), "little")


def label_constants(spaces: Mapping[str, Space], taken: Iterable[str]) -> list[tuple[str, int, str]]:
    """(constant, code, `parameter = label`) of every label; the names of a space's constants begin with its key."""
    found = [
        (f"{start}_{name}_{label}".upper(), code, f"{name} = {label}")
        for start, space in spaces.items()
        for name, parameter in space.parameters.items()
        if isinstance(parameter, Categorical)
        for label, code in parameter.codes
    ]
    names = identifiers((name for name, _, _ in found), taken)
    return [(name, code, said) for name, (_, code, said) in zip(names, found, strict=True)]


def _said(parameter: Parameter) -> str:
    said = [parameter.doc] if parameter.doc else []
    said.append("0 or 1" if isinstance(parameter, Bool) else parameter.describe())
    if parameter.optional:
        said.append(f"{parameter.inactive} or left out: {parameter.usual_word}")
    elif parameter.default is not None:
        said.append(f"{parameter.default} when left out")
    return "; ".join(said)


def _fields(space: Space) -> str:
    names = identifiers(space.parameters)
    parameters = space.parameters.values()
    lines = [f"    int64_t {name}; /* {comment(_said(item))} */" for name, item in zip(names, parameters, strict=True)]
    return "\n".join(lines or ["    int64_t nothing_to_choose;"])


def title(artefact: Artefact) -> str:
    """The family and the device, for the first line of a file."""
    return comment(f"{artefact.model.family.id} on {artefact.model.device.name}")


def enumerations(prefix: str, config: str) -> str:
    """The C statuses, tiers and states of a pin, and an answer with them and a `config`."""
    upper = prefix.upper()
    statuses = [
        f"    {upper}_{status.upper()} = {status.number}," + (f" /* {comment(status.doc)} */" if status.doc else "")
        for status in C_STATUSES
    ]
    tiers = [
        f"    {upper}_TIER_{name.upper()} = {number}," + (f" /* {said} */" if said else "")
        for number, (name, said) in enumerate(C_TIERS.items())
    ]
    blocks = {"statuses": "\n".join(statuses), "tiers": "\n".join(tiers), "config": config, "message_bytes": str(MESSAGE_BYTES)}
    return filled(packaged("enumerations.h"), prefix, **blocks)


def calls(prefix: str) -> str:
    """The functions that a model has in both forms, compiled in or loaded."""
    return filled(packaged("calls.h"), prefix, most_pins=f"{MOST_PINS:,}")


def c_header(artefact: Artefact, prefix: str) -> str:
    """The text of `PREFIX.h`."""
    family, upper, template = artefact.model.family, prefix.upper(), packaged("artefact.h")
    enums = enumerations(prefix, f"{prefix}_config config;")
    taken = re.findall(rf"\b{upper}_\w+", filled(template, prefix, **dict.fromkeys(BLOCKS, "")) + enums)
    constants = label_constants({upper: family.problem, f"{upper}_CONFIG": family.config}, taken)
    return filled(
        template,
        prefix,
        title=title(artefact),
        schema=f"0x{schema_number(artefact):016x}",
        enumerations=enums,
        labels="\n".join(f"#define {name} {c_integer(code)} /* {comment(said)} */" for name, code, said in constants),
        problem_fields=_fields(family.problem),
        config_fields=_fields(family.config),
        calls=calls(prefix),
    )


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


def cpp_header(artefact: Artefact, prefix: str) -> str:
    """The text of `PREFIX.hpp`."""
    family, names = artefact.model.family, {"auto": "automatic"}  # a word of the language
    return filled(
        packaged("artefact.hpp"),
        prefix,
        title=title(artefact),
        statuses="\n".join(f"    {status} = {prefix.upper()}_{status.upper()}," for status in C_STATUSES),
        tiers="\n".join(f"    {names.get(name, name)} = {prefix.upper()}_TIER_{name.upper()}," for name in C_TIERS),
        problem_struct=_struct("Problem", family.problem, prefix),
        config_struct=_struct("Config", family.config, prefix),
    )

"""The C++17 header around the C one: problems and configs as types, answers as values, contexts that free themselves."""

from __future__ import annotations

import re

from kerncast.compiling.header import title
from kerncast.compiling.lower import Artefact
from kerncast.compiling.packaged import packaged
from kerncast.parameters import Bool, Categorical, Parameter
from kerncast.space import Space
from kerncast.writing.c import comment, filled, identifiers, with_prefix


def _type_name(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"\W|_", name) if word) or "Label"


def _enum_types(space: Space, taken: list[str]) -> dict[str, str]:
    """The name of an enum class for each categorical parameter; it must not be that of a field."""
    labelled = [name for name, parameter in space.parameters.items() if isinstance(parameter, Categorical)]
    names = identifiers(map(_type_name, labelled), ["Problem", "Config", "found", "c", "to_c", "from_c", *taken])
    return dict(zip(labelled, names, strict=True))


def _enum(type_name: str, parameter: Parameter) -> str:
    names = identifiers(label for label, _ in parameter.codes)
    labels = ", ".join(f"{name} = {code}" for name, (_, code) in zip(names, parameter.codes, strict=True))
    return f"    enum class {type_name} : std::int64_t {{ {labels} }};\n"


def _struct(struct: str, space: Space, c_type: str, missing: str) -> str:
    """Fields in declared order; what has no default, or does not always apply, is optional."""
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
    return f"""struct {struct} {{
{enums}{chr(10).join(fields)}

    {c_type} to_c() const {{
        {c_type} c;
        {c_type}_init(&c);
{chr(10).join(to_c)}
        return c;
    }}
    static {struct} from_c(const {c_type} &c) {{
        {struct} found;
        (void)c;
{chr(10).join(from_c)}
        return found;
    }}
}};
"""


def cpp_header(artefact: Artefact, prefix: str) -> str:
    """The text of `PREFIX.hpp`."""
    family, missing = artefact.model.family, with_prefix("KERNCAST_MISSING", prefix)
    return filled(
        packaged("artefact.hpp"),
        prefix,
        title=title(artefact),
        problem_struct=_struct("Problem", family.problem, f"{prefix}_problem", missing),
        config_struct=_struct("Config", family.config, f"{prefix}_config", missing),
    )

"""The engine's C, which reads constant tables, as the runtime's, which reads the tables of a loaded model.

The text of `compiling/c/` is written for one model: sizes and tables are macros and constants of the file. Here every function
gets a context as its first argument, `#if` on a size becomes `if`, and arrays get the largest size that a blob may ask for.
Macros say what the names of tables and sizes mean (`c/model.c`). So the runtime has no engine of its own that could answer
differently. A replacement that finds nothing to replace raises, because the engine was changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

CONTEXT, POOL = "const kerncast_context *kc", "const kc_pool *pool"
# Arrays whose size is one of the model's, and the size that they have in the runtime.
DIMENSIONS = {
    r"KC_PROBLEM( \+ 1)?": "KC_MOST_PARAMETERS", r"KC_CONFIG( \+ 1)?": "KC_MOST_PARAMETERS", "KC_VALUES": "KC_MOST_VALUES",
    r"KC_FEATURES \+ 1": "KC_MOST_FEATURES", "KC_RAW": "KC_MOST_RAW", "KC_TREES_FORESTS": "KC_MOST_RAW",
    "KC_TREE_FEATURES": "KC_MOST_FEATURES", "KC_COMPARED_VALUES": "KC_MOST_VALUES", "KC_MOST_COMPARED": "KC_MOST_LISTED",
    r"KC_TREES_DEPTH( \+ 1)?": "KC_MOST_DEPTH",
}  # fmt: skip
DEFINITION = re.compile(r"^static (?:inline )?[\w ]+?[ *](kc_\w+)\(", re.M)
PUBLIC = re.compile(r"^[a-z][\w ]+?[ *](kerncast_\w+)\(", re.M)
# What a public function does without a context, by what it returns.
NOTHING = {"kerncast_status": "KERNCAST_BAD_INPUT", "int32_t": "0", "const char": '""', "void": ""}


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """Text with each of these parts replaced wherever it occurs."""
    for old, new in changes.items():
        if old not in text:
            raise AssertionError(f"the engine no longer says: {old}")
        text = text.replace(old, new)
    return text


def without_functions(text: str, names: Iterable[str]) -> str:
    """Text without the definitions of these functions, which end at a line `}` or on their first line."""
    for name in names:
        text, count = re.subn(rf"^[a-z][^\n;]*\b{name}\((?:[^\n]*\}}\n|.*?^\}}\n)", "", text, flags=re.M | re.S)
        if count != 1:
            raise AssertionError(f"the engine no longer defines {name}")
    return text


def closing(text: str, start: int) -> int:
    """The place of the bracket that closes the one at `start`."""
    pairs, depth = {"(": ")", "[": "]"}, 0
    for place in range(start, len(text)):
        depth += (text[place] == text[start]) - (text[place] == pairs[text[start]])
        if depth == 0:
            return place
    raise AssertionError("a bracket is not closed")


def lifted(text: str, known: Iterable[str], *, pool: bool = False, embedded: bool = False) -> str:
    """A file of the engine. `known`: functions of other files that take a context too. `pool`: its functions also take a pool.

    `embedded`: public functions keep their arguments, because there is one model.
    """
    text = _conditions(text)
    for old, new in DIMENSIONS.items():
        text = re.sub(rf"(?<=\w)\[{old}\]", f"[{new}]", text)
    own, others = set(DEFINITION.findall(text)), set(known)
    text = _called(text, own, "kc, pool" if pool else "kc")
    text = _called(text, others - own, "kc")
    return _public(_defined(text, own, f"{CONTEXT}, {POOL}" if pool else CONTEXT, pool), embedded)


def functions(text: str) -> set[str]:
    """The names of the functions of the engine that a file defines."""
    return set(DEFINITION.findall(text))


def _called(text: str, names: Iterable[str], given: str) -> str:
    for name in names:
        text = re.sub(rf"\b{name}\((?=\))", f"{name}({given}", text)
        text = re.sub(rf"\b{name}\((?!{given}[,)])", f"{name}({given}, ", text)
    return text


def _defined(text: str, names: set[str], arguments: str, pool: bool) -> str:
    """The definitions, which `_called` changed as if they were calls."""
    given = "kc, pool" if pool else "kc"
    for found in reversed(list(DEFINITION.finditer(text))):
        if found[1] not in names:
            continue
        begin = found.end()
        end = closing(text, begin - 1)
        declared = text[begin:end].removeprefix(given).removeprefix(", ").removeprefix("void")
        declared = f"{arguments}, {declared}" if declared.strip() else arguments
        unused = "(void)kc, (void)pool;" if pool else "(void)kc;"
        unused += " (void)context;" if pool and "*context" in declared else ""
        body = text[end + 1 :]
        if not body.startswith(" {"):
            raise AssertionError(f"{found[1]} has no body")
        text = f"{text[:begin]}{declared}) {{ {unused}{body[2:]}"
    return text


def _public(text: str, embedded: bool) -> str:
    """Public functions: the context is their own first argument, or becomes it; `embedded`, they make one for themselves."""
    for found in reversed(list(PUBLIC.finditer(text))):
        if found[1] in ("kerncast_status_name", "kerncast_tier_name"):
            continue
        begin, end = found.end(), closing(text, found.end() - 1)
        declared = text[begin:end]
        start = "const kerncast_context *const kc = context == NULL ? &kc_nothing : context;\n    (void)kc;"
        if "kerncast_context *context" not in declared:
            start = _contextless(text[found.start() :], declared, embedded, start)
            declared = declared if embedded else ", ".join(["const kerncast_context *context", declared]).removesuffix(", void")
        text = f"{text[:begin]}{declared}) {{\n    {start}{text[end + 3 :]}"
    return text


def _contextless(definition: str, declared: str, embedded: bool, start: str) -> str:
    """The beginning of a function that has no context in an artefact."""
    refusal = next(found for kind, found in NOTHING.items() if definition.startswith(kind))
    said = "the tables are damaged" if embedded else "there is no context: make one with create or init"
    if embedded:
        refusal = refusal.replace("BAD_INPUT", "CORRUPT")
    if "kerncast_answer *answer" in declared:
        refusal = f'kc_refuse(&kc_nothing, answer, {refusal}, -1, "{said}%.0s%.0s", "", "", 0)'
    back = f"return {refusal};" if refusal else "return;"
    if embedded:
        own = "kc_own_memory memory;\n    const kerncast_context *const kc = kc_alone(&memory);"
        return f"{own}\n    if (kc == NULL) {back}\n   "
    return f"{start}\n    if (context == NULL) {back}\n   "


def _conditions(text: str) -> str:
    """`#if` on a size: `if` inside a function, nothing between functions, where all of it is kept."""
    found, depth, stack = [], 0, []
    for line in text.split("\n"):
        word = line.split(" ")[0]
        if word == "#if" and "defined(" in line:
            stack.append("#")
        elif word == "#if":
            stack.append("{" if depth else "")
            line = f"    if ({line.removeprefix('#if ')}) {{" if depth else ""
        elif word == "#else" and stack[-1] != "#":
            line = "    } else {" if stack[-1] == "{" else ""
        elif word == "#endif" and stack.pop() != "#":
            line = "    }" if depth else ""
        else:
            depth += line.count("{") - line.count("}")
        found.append(line)
    return "\n".join(found)


def chosen(text: str, conditions: Mapping[str, bool]) -> str:
    """Text with these `#if` decided."""
    found, stack = [], []
    for line in text.split("\n"):
        word = line.split(" ")[0]
        if word == "#if":
            stack.append(conditions.get(line.removeprefix("#if ").strip()))
        elif word == "#else" and stack[-1] is not None:
            stack[-1] = not stack[-1]
        elif word == "#endif":
            if stack.pop() is None and False not in stack:
                found.append(line)
            continue
        if (word == "#if" and stack[-1] is not None) or (word == "#else" and stack[-1] is not None):
            continue
        if False not in stack:
            found.append(line)
    return "\n".join(found)


def rows_of(text: str, arrays: Mapping[str, str]) -> str:
    """`state->name[i]`, a row of a table whose width only the model knows: its address."""
    for name, width in arrays.items():
        start = 0
        while (at := text.find(f"state->{name}[", start)) >= 0:
            begin = at + len(f"state->{name}")
            end = closing(text, begin)
            row = f"(state->{name} + (size_t)({text[begin + 1 : end]}) * {width})"
            text, start = text[:at] + row + text[end + 1 :], at + len(f"(state->{name}")
    return text

"""Software that rows and models name: its parts, the names by which one may ask for it, and which version is the newest.

A row records its software as a JSON object (`{"framework": "VLLM", "version": "0.24.0"}`, `{"commit": "3f2a…", "compiler":
"gcc 12"}`) or as plain text. One asks for it by the whole text, by a part (`commit=3f2a91c`, `3f2a91c`), or by a short name,
with or without a version: `vllm`, `vllm==0.24.0`, `torch==2.13`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from kerncast.core.io.foreign import decode_json
from kerncast.errors import NotFound, quoted

FRAMEWORK, VERSION = "framework", "version"
# How a framework is written here, with the other ways in which people write it.
FRAMEWORKS = {
    "VLLM": ("vllm", "vLLM"),
    "TRTLLM": ("trtllm", "trt-llm", "TensorRT-LLM", "tensorrt-llm", "tensorrt_llm"),
    "SGLang": ("sglang",),
    "NCCL": ("nccl",),
    "oneCCL": ("oneccl",),
}
# Commits may be abbreviated; fewer digits than this are ambiguous.
SHORTEST_COMMIT = 7
EXACTLY = "=="
# Software that a message lists.
LISTED = 12
_ALSO, _NAME_ONE = "there are also models of ", ": name one with `software`"
# No name of a framework and no version is longer.
LONGEST_NAME = 100


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())


_SPELLED = {_plain(text): name for name, others in FRAMEWORKS.items() for text in (name, *others)}


def framework(text: str) -> str:
    """The one spelling of a framework; a name that is not known here stays as it is."""
    return _SPELLED.get(_plain(text), text) if len(text) <= LONGEST_NAME else text


def parts(text: str) -> dict[str, str]:
    """The named parts of a row's software text, values that are not strings as JSON; plain text has no parts."""
    try:
        found = decode_json(text)
    except msgspec.DecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in found.items()}


class Name(NamedTuple):
    """The names by which a request may refer to the software of a model."""

    text: str
    value: int = 0
    """Position of the value in NAME=VALUE."""


def names(software: Sequence[str]) -> tuple[Name, ...]:
    """The whole text, the value of each part, each part as NAME=VALUE, and short names; of several texts, what all share."""
    if not software:
        return ()
    first, *others = (_names(text) for text in software)
    return tuple(name for name in first if all(name in other for other in others))


def _names(text: str) -> dict[Name, None]:
    found = {Name(text): None}
    known = parts(text)
    for name, value in known.items():
        found |= {Name(value): None, Name(f"{name}={value}", len(name) + 1): None}
    for name, version in _versions(known).items():
        for spelling in dict.fromkeys((name, name.lower(), *FRAMEWORKS.get(name, ()))):
            found |= {Name(spelling): None, Name(f"{spelling}{EXACTLY}{version}"): None}
    return found


def _versions(known: dict[str, str]) -> dict[str, str]:
    """The version of each program that a text names: of its framework, and of every part that is called after a program."""
    others = {name: value for name, value in known.items() if name not in (FRAMEWORK, VERSION)}
    if FRAMEWORK not in known:
        return others
    return {framework(known[FRAMEWORK]): known.get(VERSION, ""), **others}


def is_same(software: Sequence[str], asked: str | Sequence[str]) -> bool:
    """Whether a model's software is what was asked for; exported C answers by the same rule (`query_is_software`).

    Several texts (of a pooled model) must be the same set, or have the name that is asked for in common. One text is one of
    `names`, or the same parts in another order. A commit may be abbreviated, in the model or in the request.
    """
    if not isinstance(asked, str):
        return sorted(software) == sorted(asked)
    for item in names(software):
        if asked.startswith(item.text[: item.value]) and _is_begun(item.text[item.value :], asked[item.value :]):
            return True
    whole = parts(software[0]) if len(software) == 1 else {}
    return bool(whole) and whole == parts(asked)


def is_cut(text: str) -> bool:
    """Whether a value may be abbreviated like a commit: it is hexadecimal."""
    return re.fullmatch(r"[0-9a-f]+", text) is not None


def _is_begun(text: str, asked: str) -> bool:
    shorter, longer = sorted((text, asked), key=len)
    cut = len(shorter) >= SHORTEST_COMMIT and is_cut(text) and is_cut(asked)
    return text == asked or (cut and longer.startswith(shorter))


def version_of(text: str, asked: str) -> str | None:
    """The version of what a name such as `vllm` means, if this text names that; None if it does not."""
    wanted = _plain(framework(asked.partition(EXACTLY)[0].strip()))
    found = {_plain(name): version for name, version in _versions(parts(text)).items()}
    return found.get(wanted) if wanted else None


def matching(asked: str, known: Iterable[str]) -> tuple[str, ...]:
    """Those of some software texts that a name means, the newest version first: `vllm`, `vllm==0.24.0`, `commit=3f2a91c`."""
    name, exactly, wanted = (word.strip() for word in asked.partition(EXACTLY))
    found: list[tuple[str, str]] = []
    for text in dict.fromkeys(known):
        version = version_of(text, name)
        if version is not None and exactly:
            if version == wanted or (wanted and version_key(version) == version_key(wanted)):
                found.append((text, version))
        elif version is not None:
            found.append((text, version))
        elif is_same((text,), asked):
            found.append((text, ""))
    return tuple(text for text, version in sorted(found, key=lambda item: (version_key(item[1]), item[0]), reverse=True))


def newest_version(software: Iterable[str], asked: str) -> VersionKey:
    """The key of the newest version of what a name means among some texts; one that comes before all if none names it."""
    return max((version_key(version_of(text, asked) or "") for text in software), default=version_key(""))


def newest(asked: str, known: Iterable[str], of: str = "") -> tuple[str, ...]:
    """The texts of the newest version that a name means: several if they differ in another part.

    Raises a NotFound that lists what there is; `of` says of what (`gemm/library on h100`).
    """
    texts = tuple(known)
    found = matching(asked, texts)
    if not found:
        raise NotFound(f"{of or 'the data'} {lacks(asked, texts)}")
    last = newest_version(found, asked)
    return tuple(text for text in found if newest_version((text,), asked) == last)


def lacks(asked: str, known: Iterable[str]) -> str:
    """What to say of something that does not have the software that was asked for: the words after its name."""
    told = sorted({short_name(text) for text in known})
    more = f", … ({len(told) - LISTED:,} more)" if len(told) > LISTED else ""
    there = f"has {', '.join(told[:LISTED])}{more}" if told else "names no software"
    return f"has nothing of the software '{quoted(asked)}': it {there}"


@lru_cache(1024)
def short_name(text: str) -> str:
    """The shortest name that tells a text from others: `vllm==0.24.0`, `commit=3f2a91c` if that is all, else the whole text."""
    known = parts(text)
    if len(known) == 1 and FRAMEWORK not in known:
        return quoted("=".join(*known.items()))
    if FRAMEWORK not in known:
        return quoted(text)
    version = known.get(VERSION)
    return quoted(framework(known[FRAMEWORK]).lower() + (f"{EXACTLY}{version}" if version else ""))


def also_of(names: Iterable[str]) -> str:
    """The note that there are models of other software, by their short names."""
    return f"{_ALSO}{', '.join(names)}{_NAME_ONE}"


def told_also(notes: Iterable[str]) -> tuple[list[str], list[str]]:
    """What some notes say besides `also_of`, each once, and the software that this named in them."""
    halves = [note.partition(_ALSO) for note in dict.fromkeys(notes)]
    besides = dict.fromkeys(text.removesuffix("; ") for text, _, _ in halves if text)
    named = dict.fromkeys(name for _, also, names in halves if also for name in names.removesuffix(_NAME_ONE).split(", "))
    return list(besides), list(named)


# The parts of a version as PEP 440 orders them. Longer numbers are no versions.
_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d{1,18})!)?(?P<release>\d{1,18}(?:\.\d{1,18}){0,20})"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_n>\d{0,18}))?"
    r"(?:[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_n>\d{0,18})|-(?P<post_implied>\d{1,18}))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_n>\d{0,18}))?"
    r"(?:\+(?P<local>[a-z0-9]{1,100}(?:[-_.][a-z0-9]{1,100}){0,20}))?",
    re.ASCII,
)
_BEFORE, _HERE, _AFTER = -1, 0, 1
_PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}

VersionKey = tuple[object, ...]


def version_key(text: str) -> VersionKey:
    """A key that orders versions as Python packages do: dev, a, b, rc, the release, post. Any other text comes before all."""
    found = _VERSION.fullmatch(text.strip().lower()) if len(text) <= LONGEST_NAME else None
    if found is None:
        return (_BEFORE, text)
    said = found.groupdict()
    release = tuple(int(number) for number in said["release"].split("."))
    while release and release[-1] == 0:
        release = release[:-1]
    posted = said["post"] is not None or said["post_implied"] is not None
    if said["pre"] is not None:
        pre: VersionKey = (_HERE, _PRE.get(said["pre"], said["pre"]), int(said["pre_n"] or 0))
    else:
        pre = (_BEFORE,) if said["dev"] is not None and not posted else (_AFTER,)
    post = (_HERE, int(said["post_n"] or said["post_implied"] or 0)) if posted else (_BEFORE,)
    dev = (_HERE, int(said["dev_n"] or 0)) if said["dev"] is not None else (_AFTER,)
    words = re.split(r"[-_.]", said["local"]) if said["local"] else ()
    local = tuple((1, int(word), "") if word.isdigit() and len(word) <= 18 else (0, 0, word) for word in words)
    return (_HERE, int(said["epoch"] or 0), release, pre, post, dev, local)


# The keys that best tell two versions of the same software apart, the most useful first.
TELLING = ("commit", "kernels", "program", "version")
UNKNOWN = "unknown"


def digest(software: Sequence[str]) -> str:
    """A short hash, the same whatever the order; `unknown` where the data did not say."""
    if not software:
        return UNKNOWN
    return hashlib.blake2b("\n".join(sorted(software)).encode(), digest_size=6).hexdigest()


def short(software: Sequence[str]) -> str:
    """One word for a table: the short name of a framework, the commit, else the closest thing to one."""
    if not software:
        return UNKNOWN
    known = parts(software[0])
    telling = next((known[name] for name in TELLING if name in known), None)
    word = telling or (" ".join(known.values()) if known else software[0])
    word = short_name(software[0]) if FRAMEWORK in known else word
    # Hashes are cut as git cuts them; a version such as 1.2.0rc4 stays whole, one such as 0.1.dev19262+gb6bbf29dd has a number.
    word = word[:12] if re.fullmatch(r"[0-9a-f]{13,}", word) else re.sub(r"(?<=\d)\+g[0-9a-f]{7,}(\.d\d{8})?$", "", word)
    return word if len(software) == 1 else f"{word} and {len(software) - 1} more"


def telling(software: Sequence[str]) -> str | None:
    """For a reply: the most useful part of each text, else the whole text; None if the data did not say."""
    told = [(text, parts(text)) for text in software]
    return ", ".join(next((known[name] for name in TELLING if name in known), text) for text, known in told) or None


def trained(software: Sequence[str]) -> str:
    """What to say about a model whose software is not the one asked for."""
    return "was trained on another" if software else "does not say what it was trained on"

"""Names in the place of folders: where this machine keeps its files is nobody's business who asks over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from kerncast.files.places import cache_folder
from kerncast.models import trust
from kerncast.serving.sources import Sources
from kerncast.store.shipped import folder as shipped_folder

# Members of a reply that may quote an error.
TELLING = (b'"message":"', b'"note":"', b'"warning":"', b'"reason":"')


class Names:
    """Replaces paths in what is said: those of models by their ids, all others by words."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._version = sources, -1
        self._read()

    def _read(self) -> None:
        """Paths as a text has them, and as JSON does; the longest one first, for a folder is the beginning of others."""
        names: dict[str, str] = {}
        self._version = self._sources.version  # before the models: they may change meanwhile
        for place, name in self._places():
            for path in (str(place), str(place.absolute()), str(place.resolve())):
                if "/" in path and path.strip("/"):  # a word may mean something else, the root is a part of every path
                    # "the store PATH" becomes "the store" too, not "the store the store".
                    for said in (path, f"{name} {path}"):
                        names.setdefault(said, name)
                        names.setdefault(json.dumps(said)[1:-1], json.dumps(name)[1:-1])
        self._names = names
        choices = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        self._text = re.compile(f"(?<![\\w.-])(?:{choices})(?![\\w.-])")
        self._bytes = re.compile(self._text.pattern.encode())

    def _places(self) -> Iterator[tuple[Path, str]]:
        for item in self._sources.models():
            yield item.entry.path, item.id
        for path in self._sources.paths:
            yield path, path.resolve().name
        yield self._sources.store_or_none.path, "the store"
        if (shipped := shipped_folder()) is not None:
            yield shipped, "shipped"
        yield trust.list_path(), "the list of trusted models"
        yield cache_folder("."), "the cache"
        yield Path(__file__).parent.parent, "kerncast"
        with contextlib.suppress(RuntimeError):  # this user has none
            yield Path.home(), "~"

    def in_text(self, text: str) -> str:
        """A sentence with names in the place of paths."""
        if self._version != self._sources.version:
            self._read()
        return self._text.sub(lambda found: self._names[found[0]], text)

    def in_reply(self, reply: bytes) -> bytes:
        """A JSON text with names in the place of paths."""
        if not any(member in reply for member in TELLING):
            return reply
        if self._version != self._sources.version:
            self._read()
        return self._bytes.sub(lambda found: self._names[found[0].decode()].encode(), reply)

"""How `collect` and `inspect` show what the machine's tools said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kerncast.app.cli.views.output import assignments


def hardware_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each tool, or for each device that it lists; and one for each contradiction of the profile."""
    for tool in found["tools"]:
        listed = [item for item in found["reported"] if item["tool"] == tool["name"]]
        if not listed:
            yield f"hardware, {tool['name']}: {tool['error'] or 'nothing could be read from what it printed'}"
        for number, item in enumerate(listed):
            numbers = assignments({name: f"{value:g}" for name, value in item["numbers"].items()})
            which = f"{number} " if len(listed) > 1 else ""
            yield f"hardware, {tool['name']}: {which}{item['name']}: {numbers}"
    for said in found["contradictions"]:
        yield f"! {said}"

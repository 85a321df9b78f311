"""Repeats that contradict each other, as `inspect` and `merge` say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kerncast.app.cli.views.output import assignments, duration

# Of the measurements that ended differently in different rows, this many are named.
SHOWN = 3


def disagreement_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A sentence about times that are far apart and one about statuses that differ, where there are such repeats."""
    if found["measurements"]:
        worst = found["worst"][0]
        yield (
            f"{found['measurements']:,} measurements have repeats more than {found['factor']}x apart "
            f"(worst: {duration(worst['fastest_ns'])} and {duration(worst['slowest_ns'])}, key {worst['key']})"
        )
    if found["mixed_statuses"]:
        count, examples = found["mixed_statuses"], found["mixed_examples"][:SHOWN]
        more = f"; and {count - len(examples):,} more" if count > len(examples) else ""
        said = "; ".join(map(_mixed, examples))
        yield f"{count:,} measurements have different statuses in different rows: {said}{more}"


def _mixed(item: Mapping[str, Any]) -> str:
    """`M=128 … on a100: 2 ok, 1 timeout (key …)`."""
    statuses = ", ".join(f"{count:,} {status}" for status, count in item["statuses"].items())
    return f"{assignments({**item['problem'], **item['config']})} on {item['device']}: {statuses} (key {item['key']})"

"""What `kerncast inspect --verify` checks of a store of models."""

from __future__ import annotations

from pathlib import Path

from kerncast.core.io.artefact import ArtefactKind, Findings
from kerncast.models.checking import check_files
from kerncast.models.manifest import MANIFEST
from kerncast.models.store.entry import ENTRY, Entry, read_entry
from kerncast.models.store.store import LOCK, Store


def check_store(findings: Findings) -> None:
    """Every entry, and the model that it names."""
    files = sorted(findings.path.glob(f"*/*/*/*/*/{ENTRY}"))
    kept: set[Path] = set()
    for number, file in enumerate(files):
        findings.progress.step("entries", number, len(files))
        with findings.looking(file):
            entry = read_entry(file)
            kept.add(entry.path)
            _entry(findings, entry)
    entries, _ = Store.open(findings.path).survey()
    if entries and not findings.faults:
        findings.checks += [f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}", "the models that they name"]
    for folder in sorted({file.parent for file in findings.path.glob(f"*/*/*/*/*/*/{MANIFEST}")} - kept):
        findings.notes.append(f"{folder} is a model that no entry names: adding the model again removes it")
    if (findings.path / LOCK).exists():
        findings.notes.append(f"{findings.path / LOCK} is there: another process is writing, or was killed while it did")


def _entry(findings: Findings, entry: Entry) -> None:
    before = len(findings.faults)
    if entry.path.is_dir():
        check_files(findings, entry.path)
    if len(findings.faults) == before:
        entry.load()


STORE = ArtefactKind("store", lambda contents: contents.holds_like(f"*/*/*/*/*/{ENTRY}"), check_store)

"""Files that appear whole or not at all, locks, and JSON that says what it is."""

import errno
import os
import threading
import tomllib

import msgspec
import pytest
from tests.support.artefacts import reseal

from kerncast.core.io import atomic
from kerncast.core.io.artefact import Versioned
from kerncast.core.io.atomic import build_directory, drafted, is_draft, refuse_unwritable, replace_file, write_text
from kerncast.core.io.foreign import decode_toml
from kerncast.core.io.lock import in_turn
from kerncast.errors import BadFile, CannotWrite, InvalidValue


class Contents(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    format: str = "kerncast-test"
    version: int = 3


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_draft(step, tmp_path, monkeypatch):
    """At whichever step the disk refuses."""
    file = tmp_path / "f"
    write_text(file, "old")
    if step != "write":
        monkeypatch.setattr(os, step, full)
    with pytest.raises(CannotWrite, match=r"/f: No space left on device; free some space or choose another place$"):
        atomic.write_atomically(file, full if step == "write" else lambda draft: draft.write_text("new"))
    assert ([item.name for item in tmp_path.iterdir()], file.read_text()) == (["f"], "old")


def test_the_file_and_its_name_are_handed_to_the_disk(tmp_path, monkeypatch):
    """The file before the rename, the folder after it."""
    seen, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append("rename"), replace(a, b)))
    write_text(tmp_path / "f", "x")
    assert is_draft(os.path.basename(seen[0]), "f")
    assert seen[1:] == ["rename", str(tmp_path)]


def test_threads_that_write_one_file_do_not_share_a_draft(tmp_path):
    """Both are in the middle of writing; one of them wins whole."""
    meet = threading.Barrier(2)

    def write(text):
        def fill(draft):
            draft.write_text(text)
            meet.wait(10)
            assert draft.read_text() == text

        replace_file(tmp_path / "f", fill)

    threads = [threading.Thread(target=write, args=(letter * 1000,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "f").read_text() in ("a" * 1000, "b" * 1000)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("name", "draft"), [(".f.4711.2.kerncast", True), (".f.4711", False), (".g.4711.2.kerncast", False)])
def test_a_draft_is_known_by_its_name(name, draft):
    """With the process and a number, and of this file."""
    assert is_draft(name, "f") is draft


# -- directories ---------------------------------------------------------------------------------------


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
    """A refusal leaves nothing behind, not even the folders above; the disk's refusals are worded, others pass."""
    out = tmp_path / "a" / "b" / "out"

    def stopped(folder):
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_directory(out, stopped)
    with pytest.raises(CannotWrite, match=r"out: No space left on device; free some space"):
        build_directory(out, full)
    with pytest.raises(FileNotFoundError), drafted(out):
        (tmp_path / "what is read for it").read_text()
    assert not list(tmp_path.iterdir())
    build_directory(out, lambda folder: (folder / "x").write_text("1"))
    assert [item.name for item in out.iterdir()] == ["x"]
    with pytest.raises(InvalidValue, match="out exists already: choose another name, or remove it first"):
        refuse_unwritable(out)


# -- locks ---------------------------------------------------------------------------------------------


def test_those_who_wait_for_a_lock_come_one_after_the_other(tmp_path):
    """Nobody is refused."""
    inside, most = [], []

    def work():
        with in_turn(tmp_path / "lock"):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


# -- JSON that says what it is ---------------------------------------------------------------------------


KIND = Versioned("kerncast-test", 3, Contents, "a test file", "make it again")


def test_what_was_written_is_read(tmp_path):
    """The checksum is beside the contents, or in a field of theirs."""
    (file := tmp_path / "f").write_bytes(KIND.text(Contents("a")))
    assert KIND.read(file) == Contents("a")
    own = Versioned("kerncast-test", 3, Contents, "a test file", "make it again", seal_field="name")
    file.write_bytes(own.text(Contents("a")))
    assert own.read(file).name == own.seal({"name": "", "format": "kerncast-test", "version": 3})


# What another version of kerncast wrote, with its checksum.
OTHER = reseal({"format": "kerncast-test", "version": 3}).decode()


@pytest.mark.parametrize(
    ("text", "why"),
    {
        "{": r"f is damaged \(.*\): make it again",
        "[]": "f is not a test file: its format is 'list', not 'kerncast-test'; make it again",
        "{}": "f is not a test file: its format is 'unknown'",
        '{"format": "kerncast-test"}': "f has no valid version: None; make it again",
        '{"format": "kerncast-test", "version": true}': "f has no valid version: True",
        '{"format": "kerncast-test", "version": 4}': "f is version 4, this kerncast reads up to version 3: upgrade kerncast",
        '{"format": "kerncast-test", "version": 1}': "f is version 1, this kerncast reads version 3: make it again",
        '{"format": "kerncast-test", "version": 3}': "f has no checksum: make it again",
        '{"format": "kerncast-test", "version": 3, "name": "a", "seal": ""}': "f differs from its checksum: make it again",
        OTHER: r"f is of another version of kerncast \(the key 'name' is missing\): make it again",
        "[" * 100_000: r"f is damaged",
        '{"format": "\\ud800"}': r"f is ",
    }.items(),
)
def test_other_files_are_refused_with_the_next_step(text, why, tmp_path):
    """One sentence each."""
    (file := tmp_path / "f").write_text(text)
    with pytest.raises(BadFile, match=why) as caught:
        KIND.read(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "{a = " * 3000, "a = " + "9" * 5000, "a = 1 2"])
def test_toml_that_cannot_be_parsed_is_one_kind_of_error(text):
    """Deep nesting and endless numbers are mistakes in a file like any other, not a crash of the parser."""
    with pytest.raises(tomllib.TOMLDecodeError):
        decode_toml(text)

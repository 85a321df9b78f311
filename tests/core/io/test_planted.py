"""What somebody else put into a folder: links in place of locks, pipes in place of files, folders that others can change."""

import os

import pytest

import kerncast
from kerncast.core.io.arguments import open_above
from kerncast.core.io.artefact import Versioned
from kerncast.core.io.atomic import remove_directory
from kerncast.core.io.lock import in_turn, is_held, one_writer
from kerncast.errors import BadFile


def test_a_lock_that_is_a_link_leaves_what_it_leads_to(tmp_path):
    """Taking a lock empties it: through a link, that would be another file."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "x.lock").symlink_to(victim)
    with pytest.raises(BadFile, match="is a link"), one_writer(tmp_path, "x.lock", "wait"):
        pass
    with pytest.raises(BadFile, match="is a link"), in_turn(tmp_path / "x.lock"):
        pass
    assert victim.read_text() == "mine"
    assert not is_held(tmp_path / "x.lock")


def test_nothing_is_removed_through_a_link(tmp_path):
    """A folder of somebody's store may be a link to a folder that has nothing to do with it."""
    (tmp_path / "store").mkdir()
    (tmp_path / "outside" / "model").mkdir(parents=True)
    (tmp_path / "store" / "gemm").symlink_to(tmp_path / "outside")
    with pytest.raises(BadFile, match="leads out of"):
        remove_directory(tmp_path / "store" / "gemm" / "model", tmp_path / "store")
    assert (tmp_path / "outside" / "model").exists()


def test_a_pipe_is_not_waited_for(tmp_path):
    """Nobody writes to it, so reading it would never end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadFile, match="is not a file"), one_writer(tmp_path, "pipe", "wait"):
        pass
    with pytest.raises(BadFile, match="is not a file"):
        Versioned("f", 1, dict, "a thing", "restore it").read(pipe)


@pytest.mark.needs("root")  # to give a folder away
def test_a_folder_above_must_not_be_anothers(tmp_path):
    """Who owns it, or may write to it, can put another folder in the place of what is in it."""
    assert open_above(tmp_path) is None
    tmp_path.chmod(0o777)
    assert "others may write" in open_above(tmp_path)
    tmp_path.chmod(0o1777)
    assert open_above(tmp_path) is None
    os.chown(tmp_path, 65534, 65534)
    assert "another user owns" in open_above(tmp_path)


def test_a_table_whose_name_is_not_text_is_imported(tmp_path):
    """A name is bytes to the file system; the dataset says it as well as it can."""
    table = tmp_path / os.fsdecode(b"t\xff.csv")
    table.write_text("m,n,k,dtype,latency_ms,gpu\n1,2,3,fp16,0.1,a100\n")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(kerncast.Dataset.guess_mapping(table))
    found = kerncast.read(table, file_format="csv", mapping=mapping, out=tmp_path / "d")
    assert [source.name for source in found.contents.sources] == ["t\ufffd.csv"]

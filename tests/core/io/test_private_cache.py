"""The cache of compiled code: of this user alone, or not used."""

import os
import stat

import pytest

from kerncast.core.io.arguments import private_cache
from kerncast.errors import CannotWrite


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_new_cache_is_for_this_user_alone(root):
    """0700, whatever the umask; one that others could read becomes so."""
    before = os.umask(0)
    try:
        folder = private_cache("select")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, root)] == [0o700, 0o700]
    folder.chmod(0o755)
    assert stat.S_IMODE(private_cache("select").stat().st_mode) == 0o700


@pytest.mark.parametrize("place", ["select", ".", ".."])
def test_a_cache_that_others_can_write_to_is_not_used(root, place):
    """The folder, the one above it, or one in which everybody can rename: what lies there may be anybody's code."""
    folder = private_cache("select")
    (root / place).chmod(0o777)
    with pytest.raises(CannotWrite, match=r"is not used, because others may write to .*: set KERNCAST_CACHE"):
        private_cache("select")
    (root / "..").chmod(0o1777)  # as /tmp is
    if place == "..":
        assert private_cache("select") == folder


def test_a_cache_of_another_user_is_not_used(root, monkeypatch):
    """As for root, who is given the cache of an ordinary user."""
    private_cache("select")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CannotWrite, match="another user owns"):
        private_cache("select")


def test_a_cache_that_cannot_be_made_is_a_sentence(monkeypatch):
    """With the next step."""
    monkeypatch.setenv("KERNCAST_CACHE", "/proc/nope")
    with pytest.raises(CannotWrite, match=r"cannot be used .* set KERNCAST_CACHE"):
        private_cache("select")

"""`kerncast.get_op`, `get_family`, `get_device`: look up by name, here and in installed packages."""

from __future__ import annotations

from typing import overload

from kerncast import devices
from kerncast.declared.family_file import family_named
from kerncast.device import Device
from kerncast.op import Family, Op
from kerncast.registry import FAMILIES, OPS


@overload
def get_op(name: str) -> Op: ...
@overload
def get_op(name: None = None) -> tuple[Op, ...]: ...
def get_op(name: str | None = None) -> Op | tuple[Op, ...]:
    """The op with this name or alias; without a name, all of them."""
    return tuple(OPS) if name is None else OPS.get(name)


@overload
def get_family(name: str) -> Family: ...
@overload
def get_family(name: None = None) -> tuple[Family, ...]: ...
def get_family(name: str | None = None) -> Family | tuple[Family, ...]:
    """The kernel family called `name`, or the one that a TOML file declares; without a name, all of them."""
    return tuple(FAMILIES) if name is None else family_named(name)


@overload
def get_device(name: str) -> Device: ...
@overload
def get_device(name: None = None) -> tuple[Device, ...]: ...
def get_device(name: str | None = None) -> Device | tuple[Device, ...]:
    """The device called `name` (`local` is this machine); without a name, every profile that ships."""
    return tuple(devices.profiles().values()) if name is None else devices.get(name)

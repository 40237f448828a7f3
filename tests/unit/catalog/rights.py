"""Permissions that count for root as well.

Tests often run as root, for whom files are writable whatever their mode. Linux lets a thread put down that right.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_DAC_OVERRIDE = 1 << 1
_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Within it, this thread obeys the modes of files."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    assert libc.capget(ctypes.byref(header), data) == 0
    before = data[0].effective
    data[0].effective &= ~_DAC_OVERRIDE
    assert libc.capset(ctypes.byref(header), data) == 0
    try:
        yield
    finally:
        data[0].effective = before
        assert libc.capset(ctypes.byref(header), data) == 0

"""A Python program that loads the library, and whose faulthandler must keep working.

    host.py LIBRARY                   copies in several threads
    host.py LIBRARY segv | bus        then dies of a fault of its own, while the guard lives
    host.py LIBRARY segv-unguarded    the same after the guard
    host.py LIBRARY segv-between      the same with the faulthandler enabled between two guards
    host.py LIBRARY segv-two COPY     the same with guards of two copies of the library in turn
"""

import ctypes
import faulthandler
import mmap
import os
import sys
import threading

PAGE = 4096
PAGES = 4
THREADS = 8
ROUNDS = 100
NOT_BACKED = 2

faulthandler.enable()


def load(path):
    library = ctypes.CDLL(path)
    library.longshore_copy.restype = ctypes.c_size_t
    library.longshore_copy.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_int),
    ]
    return library


library = load(sys.argv[1])
CONTENT = bytes((at * 31 ^ at >> 9) & 0xFF for at in range(PAGES * PAGE))
failures = []


def truncated_mapping(there):
    """Return a mapping of a truncated file, whose first pages are backed, and its address."""
    fd = os.memfd_create("host")
    os.ftruncate(fd, PAGES * PAGE)
    mapping = mmap.mmap(fd, PAGES * PAGE)
    mapping[:] = CONTENT
    os.ftruncate(fd, there * PAGE)
    os.close(fd)
    return mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def check_copies(which, library=library, rounds=ROUNDS):
    """Copy across the end of the file, from many places."""
    for round in range(rounds):
        there = 1 + (which + round) % (PAGES - 1)
        mapping, address = truncated_mapping(there)
        before = (which * 977 + round * 131) % (there * PAGE)
        start = there * PAGE - before
        target = ctypes.create_string_buffer(before + PAGE // 2)
        cause = ctypes.c_int(-1)
        # Other threads run at the same time: ctypes releases the GIL for a call.
        done = library.longshore_copy(address + start, target, len(target), ctypes.byref(cause))
        expected = CONTENT[start : start + before] + bytes(PAGE // 2)
        if (done, cause.value, target.raw) != (before, NOT_BACKED, expected):
            failures.append(f"{done} bytes and cause {cause.value}, but {before} were backed")


def fall_over_segv():
    ctypes.string_at(0)


def fall_over_bus():
    mapping, _ = truncated_mapping(1)
    mapping[PAGE]


if library.longshore_guard() != 0:
    sys.exit("no guard")
threads = [threading.Thread(target=check_copies, args=[which]) for which in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failures:
    sys.exit("\n".join(failures))
mode = sys.argv[2] if len(sys.argv) > 2 else ""
if mode == "segv":
    fall_over_segv()
if mode == "bus":
    fall_over_bus()
library.longshore_unguard()
if mode == "segv-unguarded":
    fall_over_segv()
if mode == "segv-between":
    faulthandler.disable()
    faulthandler.enable()
    library.longshore_guard()
    check_copies(0)
if mode == "segv-two":
    libraries = library, load(sys.argv[3])
    for _ in range(10):
        for guarding in libraries:
            guarding.longshore_guard()
            check_copies(0, guarding, rounds=3)
        for guarding in libraries:
            guarding.longshore_unguard()
if failures:
    sys.exit("\n".join(failures))
if mode in ("segv-between", "segv-two"):
    fall_over_segv()
print("the host holds")

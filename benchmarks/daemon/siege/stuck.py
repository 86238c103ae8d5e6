"""A file system whose pages never come, and a process that is stuck in it.

    python stuck.py serve DIRECTORY UID     mounts it there, as fusermount3 would for that user
    python stuck.py hold FILE MIB           takes MIB on each emulated card, then maps FILE

The file is opened twice. What is read by way of the page cache keeps its page locked until the
server answers, which it never does; the other one is opened with FOPEN_DIRECT_IO, and to map that
privately, the kernel waits for that page with the process's memory locked for writing
(fuse_file_mmap, invalidate_inode_pages2). From then on whoever reads /proc/PID/environ or cmdline
waits as well, and no signal ends the process: only the server's end does.

Every file name is there, and is a regular file; NEVER is looked up for ever.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import threading
import time
from pathlib import Path

NEVER = b"never"
MS_NOSUID_NODEV = 6
# Of the kernel's fuse.h.
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = 26, 27, 29, 34, 36, 42
DIRECT_IO, KEEP_CACHE = 1, 2  # without the latter, the second `open` would wait already
DONE = frozenset({RELEASE, FLUSH, RELEASEDIR, ACCESS})
UNANSWERED = frozenset({READ, FORGET, INTERRUPT, BATCH_FORGET})
ENOSYS = 38
FOR_EVER_S = 3600
HEAD, ANSWER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
MAP_WITHIN_S = 1.0  # until the other thread's read has begun


def mount(where: str, uid: int) -> int:
    """The server's file descriptor."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id={uid},group_id={uid}"
    if libc.mount(b"stuck", where.encode(), b"fuse.stuck", MS_NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount on {where}")
    return fd


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def serve(fd: int) -> None:
    opened = 0
    while True:
        message = os.read(fd, 1 << 20)
        _, what, unique, node, *_ = HEAD.unpack_from(message)
        body = message[HEAD.size :]
        error, out = 0, b""
        if what in UNANSWERED or (what == LOOKUP and body.startswith(NEVER)):
            continue
        if what == INIT:
            out = struct.pack("<IIIIHHIIHHI28x", 7, 31, 4096, 0, 12, 10, 4096, 1, 1, 0, 0)
        elif what == LOOKUP:
            out = struct.pack("<QQQQII", 2, 0, FOR_EVER_S, FOR_EVER_S, 0, 0) + attributes(2)
        elif what == GETATTR:
            out = struct.pack("<QII", FOR_EVER_S, 0, 0) + attributes(node)
        elif what in (OPEN, OPENDIR):
            opened += 1
            out = struct.pack("<QII", opened, KEEP_CACHE | (opened > 1) * DIRECT_IO, 0)
        elif what not in DONE:
            error = -ENOSYS
        os.write(fd, ANSWER.pack(ANSWER.size + len(out), error, unique) + out)


def attributes(node: int) -> bytes:
    mode = 0o40755 if node == 1 else 0o100755
    me = os.getuid()
    return struct.pack("<QQQQQQIIIIIIIIII", node, 1 << 20, 8, *[0] * 6, mode, 1, me, me, 0, 4096, 0)


def hold(file: str, mib: int) -> None:
    if mib:
        sys.path.insert(0, str(Path(__file__).parents[3]))
        from carmad.gpu.card import Card, paths

        for path in paths(os.environ["CARMA_EMULATED_DIR"]):
            card = Card(path)
            card.attach()
            card.allocate(mib)
    threading.Thread(target=_read, args=(file,), daemon=True).start()
    time.sleep(MAP_WITHIN_S)
    mmap.mmap(os.open(file, os.O_RDONLY), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
    sys.exit("it was mapped: this kernel does not wait")


def _read(file: str) -> None:
    os.read(os.open(file, os.O_RDONLY), 4096)


def main(verb: str, where: str, number: str) -> None:
    if verb == "serve":
        fd = mount(where, int(number))
        become(int(number))
        serve(fd)
    else:
        hold(where, int(number))


if __name__ == "__main__":
    main(*sys.argv[1:])

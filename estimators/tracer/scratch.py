"""Files that a traced script writes live in memory, and nobody has to remove them.

A file that Python code opens for writing becomes a memory file (memfd), which the kernel frees with
the last process that holds it, however that ends. What the script then sees is the real tree with
its own changes on top: it reads what it wrote, and what it removed is gone, for itself alone.
Nothing real is made, changed or removed.

This is done in the functions of `os` that take a path, and in `open`. Programs that it starts, C
code that opens paths by itself see the real tree only, unless they are given the
path from `path_for_kernel`. With Landlock they can write nothing there; without it programs are
refused, but such C code is not stopped (see `confine`). os.truncate sees the real tree as well, and
is refused.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import glob
import importlib
import io
import os
import pathlib
import posixpath
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, Iterator

KEPT_BYTES = 2 * 2**30  # with this much in its files, it is given no more of them
FILE_BYTES = 2**30  # in one of them
LINKS = 40  # followed for one path, as in Linux
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_REAL = ("/dev/", "/proc/")  # devices, and the memory files themselves; /dev/shm is not real
# Functions of `os`: their first argument is followed if it is a link, or is not.
_FOLLOW = ("stat", "statvfs", "access", "chdir", "open")
_DO_NOT = ("lstat", "readlink", "mkdir", "rmdir", "remove", "rename", "link")
_NO_MATTER = ("chmod", "lchmod", "chown", "lchown", "utime", "setxattr", "removexattr")

_open, _fd_open, _stat, _lstat = builtins.open, os.open, os.stat, os.lstat
_scandir, _access, _readlink = os.scandir, os.access, os.readlink
_chdir, _getcwd, _statvfs = os.chdir, os.getcwd, os.statvfs
_installed: list[Tree] = []
GONE = object()


class Directory:
    """One that the script made."""


@dataclass(frozen=True)
class Link:
    target: str  # as written


class Entry:
    """What `os.scandir` gives for what only the script has."""

    def __init__(self, directory: Any, name: str) -> None:
        self.name: Any = os.fsencode(name) if isinstance(directory, bytes) else name
        self.path = posixpath.join(directory, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def inode(self) -> int:
        return os.lstat(self.path).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        look = os.stat if follow_symlinks else os.lstat
        return look(self.path)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return posixpath.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return posixpath.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return posixpath.islink(self.path)

    def is_junction(self) -> bool:
        """Of Windows."""
        return False


class Entries(contextlib.ExitStack):
    """The iterator and context manager that `os.scandir` returns."""

    def __init__(self, entries: list[Any]) -> None:
        super().__init__()
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)


class FileIO(io.FileIO):
    """Its path passes through `os.open`, as that of `open`."""

    def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None):
        is_path = opener is None and not isinstance(file, int)
        super().__init__(file, mode, closefd, os.open if is_path else opener)


class Tree:
    """The file tree as the script left it. Most methods do what the function of `os` with their
    name does, for an absolute path that is resolved as far as the script's own links go."""

    def __init__(self) -> None:
        # What the script made, moved or removed: a memory file, a Link, a Directory, the real path
        # of what it moved here, or GONE. What is real at these paths and below them is hidden.
        self._nodes: dict[str, Any] = {}
        self._cwd: str | None = None  # where the script went, if that is no real directory
        self.changed: Callable[[], None] = lambda: None  # called when something is

    def install(self) -> None:
        """Put its methods in the place of functions of `os`."""
        _installed[:] = [self]
        functions = {name: self._function(name) for name in (*_FOLLOW, *_DO_NOT, *_NO_MATTER)}
        functions.update(unlink=functions["remove"], replace=functions["rename"])
        functions.update(fchdir=functions["chdir"], getcwdb=lambda: os.fsencode(self.getcwd()))
        for name in ("listdir", "scandir", "symlink", "getcwd"):
            functions[name] = getattr(self, name)
        functions["listxattr"] = lambda path=None, **_: []
        keeper = getattr(pathlib, "_NormalAccessor", None)  # up to Python 3.10
        for name, function in functions.items():
            if getattr(os, name, None) in os.supports_follow_symlinks:  # as shutil asks
                os.supports_follow_symlinks.add(function)
            if hasattr(os, name):
                setattr(os, name, function)
            if hasattr(keeper, name):
                setattr(keeper, name, staticmethod(function))
        globber = getattr(glob, "_StringGlobber", None)  # of pathlib in Python 3.13
        if getattr(globber, "scandir", None) is _scandir:
            globber.scandir = staticmethod(self.scandir)  # type: ignore[union-attr]
        builtins.open = io.open = self.open_file
        io.FileIO = FileIO  # type: ignore[misc]
        io.open_code = lambda path: self.open_file(path, "rb")
        imports: Any = sys.modules["_frozen_importlib_external"]
        imports._os, imports._io = os, io  # modules may be the script's own as well
        if keeper is not None and sys.version_info >= (3, 10):
            keeper.open = staticmethod(self.open_file)
        # These keep such functions, or what those can do.
        for module in filter(None, (sys.modules.get("bz2"), shutil, tempfile)):
            importlib.reload(module)

    def _function(self, name: str) -> Callable[..., Any]:
        """In place of that of `os`."""
        real: Any = getattr(os, name, None)
        is_left = name in _NO_MATTER
        method = self.leave if is_left else getattr(self, name)

        def call(path: Any = None, *args: Any, **kwargs: Any) -> Any:
            path = kwargs.pop("src", path)
            follow = kwargs.get("follow_symlinks", name not in _DO_NOT)
            own = self._path(path, kwargs.get("dir_fd", kwargs.get("src_dir_fd")), follow)
            if own is None:
                found: Any = None if is_left else real(path, *args, **kwargs)
                self._cwd = None if name == "chdir" else self._cwd
                return found
            try:
                found = method(own, *args, **kwargs)
            except OSError as error:
                error.filename = path
                raise
            return os.fsencode(found) if isinstance(path, bytes) and name == "readlink" else found

        return call

    # ---- paths

    def _path(self, path: Any, dir_fd: int | None = None, follow: bool = True) -> str | None:
        """Absolute, through the script's own links, the last name itself only if it is to `follow`;
        None for what is left to the kernel."""
        text = "" if path is None or isinstance(path, int) else os.fsdecode(path)
        if not text:
            return None
        if dir_fd is not None:
            text = posixpath.join(_readlink(f"/proc/self/fd/{dir_fd}"), text)
        text = _absolute(self.getcwd(), text)
        for _ in range(LINKS):
            names = _upwards(text if follow else posixpath.dirname(text))
            link = next((one for one in names if isinstance(self._nodes.get(one), Link)), None)
            if link is None:
                is_real = text.startswith(_REAL) and not text.startswith("/dev/shm/")
                return None if is_real else text
            target = posixpath.join(self._nodes[link].target, text[len(link) + 1 :])
            text = _absolute(posixpath.dirname(link), target)
        raise _error(errno.ELOOP)

    def _find(self, path: str) -> Any:
        """What is at such a path: as in `_nodes`, or the path of what may be real."""
        for above in _upwards(path) if self._nodes else ():
            node = self._nodes.get(above)
            if node is not None:
                inside = path[len(above) :]
                return node + inside if isinstance(node, str) else GONE if inside else node
        return path

    def _find_there(self, path: str) -> Any:
        node = self._find(path)
        if node is GONE:
            raise _error(errno.ENOENT)
        return node

    def _mode(self, path: str, *, follow: bool = False) -> int:
        """0: there is nothing."""
        try:
            return self.stat(path, follow_symlinks=follow).st_mode
        except OSError:
            return 0

    def _needs_parent(self, path: str) -> None:
        """`blame` knows it by its name."""
        if not stat.S_ISDIR(self._mode(posixpath.dirname(path), follow=True)):
            raise _error(errno.ENOENT)

    # ---- reading

    def stat(self, path: str, *, follow_symlinks: bool = True, **_: Any) -> os.stat_result:
        node = self._find_there(path)
        if isinstance(node, int):
            return os.fstat(node)
        if isinstance(node, str):
            return _stat(node, follow_symlinks=follow_symlinks)
        if isinstance(node, Link):
            return _lstat("/proc/self")  # which is one
        parts: Any = _stat("/").__reduce__()
        mode, _, *values = parts[1][0]
        return os.stat_result((mode, id(node), *values), parts[1][1])  # no other is the same

    def lstat(self, path: str, **_: Any) -> os.stat_result:
        return self.stat(path, follow_symlinks=False)

    def statvfs(self, path: str) -> Any:
        """Of a file system: what only the script has counts as if it were in the nearest directory
        that is real."""
        self._find_there(path)
        return _statvfs(self.nearest(path))

    def nearest(self, path: str) -> str:
        return next(p for p in (*_upwards(path), "/") if self._find(p) == p)

    def access(self, path: str, mode: int, **_: Any) -> bool:
        """What it may write here need not be writable there."""
        node = self._find(path)
        return _access(node, mode & ~os.W_OK) if isinstance(node, str) else node is not GONE

    def readlink(self, path: str, **_: Any) -> str:
        node = self._find_there(path)
        if isinstance(node, Link):
            return node.target
        if not isinstance(node, str):
            raise _error(errno.EINVAL)
        return _readlink(node)

    def listdir(self, path: Any = ".") -> list[Any]:
        return [entry.name for entry in self.scandir("." if path is None else path)]

    def scandir(self, path: Any = ".") -> Any:
        own = self._path(path)
        if own is None:
            return _scandir(path)
        node, shown = self._find(own), os.fspath(path)
        if isinstance(node, int) or node is GONE:
            raise _error(errno.ENOENT if node is GONE else errno.ENOTDIR, path)
        entries: list[Any] = []
        if isinstance(node, str):
            as_shown = node == _absolute(_getcwd(), os.fsdecode(shown))
            with _scandir(path if as_shown else node) as real:
                # These know without a look what is a directory.
                entries = [one if as_shown else Entry(shown, one.name) for one in real]
        places = (posixpath.join(own, os.fsdecode(one.name)) for one in entries)
        entries = [one for one, place in zip(entries, places) if place not in self._nodes]
        inside = own.rstrip("/") + "/"
        made = (path for path, node in list(self._nodes.items()) if node is not GONE)
        names = (path[len(inside) :] for path in made if path.startswith(inside))
        return Entries([*entries, *(Entry(shown, name) for name in names if "/" not in name)])

    def chdir(self, path: str) -> None:
        if not stat.S_ISDIR(self.stat(path).st_mode):
            raise _error(errno.ENOTDIR)
        node = self._find(path)
        if isinstance(node, str):
            _chdir(node)
        self._cwd = None if node == path else path

    def getcwd(self) -> str:
        return self._cwd or _getcwd()

    # ---- writing

    def open_file(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """`open`: every path passes through `os.open`."""
        opener = kwargs.pop("opener", None) if len(args) < 6 else args[5]
        if opener is None and not isinstance(file, int):
            opener = os.open
        real: Any = _open
        return real(file, mode, *args[:5], opener=opener, **kwargs)

    def open(self, path: str, flags: int, mode: int = 0o777, **_: Any) -> int:
        node = self._find(path)
        if flags & os.O_CREAT and flags & os.O_EXCL and self._mode(path):
            raise _error(errno.EEXIST)
        if flags & _CHANGES and not isinstance(node, int):
            node = self._adopt(path, flags)
        if node is GONE:
            raise _error(errno.ENOENT)
        if isinstance(node, Directory):
            return os.memfd_create("directory")  # opened to be synced
        if isinstance(node, int):
            node = f"/proc/self/fd/{node}"
            flags &= ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return _fd_open(node, flags, mode)

    def _adopt(self, path: str, flags: int) -> int:
        """Give the script a file of its own at a path, with the content of what is there."""
        there = self._mode(path, follow=True)
        if stat.S_ISDIR(there):
            raise _error(errno.EISDIR)
        if not there:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT)
            self._needs_parent(path)
        real = self._find(path) if there and not flags & os.O_TRUNC else os.devnull
        kept, size = 0, _stat(real).st_size
        for file in list(self._nodes.values()):
            with contextlib.suppress(OSError):  # another thread has removed it
                kept += os.fstat(file).st_blocks * 512 if isinstance(file, int) else 0
        if size > FILE_BYTES or kept + size >= KEPT_BYTES:
            raise _error(errno.ENOSPC)
        self.changed()
        fd = os.memfd_create(posixpath.basename(path)[-200:])
        with _open(real, "rb") as source, _open(fd, "wb", closefd=False) as copy:
            shutil.copyfileobj(source, copy)
        self._nodes[path] = fd
        if path.endswith(".py"):
            importlib.invalidate_caches()
        return fd

    def mkdir(self, path: str, *_: Any, **__: Any) -> None:
        self._make(path, Directory())

    def symlink(self, src: Any, dst: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> None:
        path = self._path(dst, dir_fd, follow=False)
        if path is None:
            raise _error(errno.EPERM, dst)
        self._make(path, Link(os.fsdecode(src)))

    def _make(self, path: str, node: Any) -> None:
        if self._mode(path):
            raise _error(errno.EEXIST)
        self._needs_parent(path)
        self.changed()
        self._nodes[path] = node

    def remove(self, path: str, **_: Any) -> None:
        if stat.S_ISDIR(self.lstat(path).st_mode):
            raise _error(errno.EISDIR)
        self._drop(path)

    def rmdir(self, path: str, **_: Any) -> None:
        if not stat.S_ISDIR(self.lstat(path).st_mode):
            raise _error(errno.ENOTDIR)
        if self.listdir(path):
            raise _error(errno.ENOTEMPTY)
        self._drop(path)

    def rename(self, path: str, dst: Any, *, dst_dir_fd: int | None = None, **_: Any) -> None:
        new = self._path(dst, dst_dir_fd, follow=False)
        if new is None:
            raise _error(errno.EPERM)
        self.lstat(path)
        if path == new:
            return
        self._needs_parent(new)
        kind, there = stat.S_ISDIR(self._mode(path)), self._mode(new)
        if path in _upwards(new):
            raise _error(errno.EINVAL)
        if there and stat.S_ISDIR(there) != kind:
            raise _error(errno.ENOTDIR if kind else errno.EISDIR)
        if there and kind and self.listdir(new):
            raise _error(errno.ENOTEMPTY)
        self._drop(new)
        node = self._find(path)
        inside = self._take(path)
        self._nodes.update((new + one[len(path) :], it) for one, it in inside.items())
        self._nodes[new] = node

    def link(self, path: str, dst: Any, *, dst_dir_fd: int | None = None, **_: Any) -> None:
        new = self._path(dst, dst_dir_fd, follow=False)
        if new is None:
            raise _error(errno.EPERM)
        node = self._find_there(path)
        self._make(new, os.dup(node) if isinstance(node, int) else node)

    def _drop(self, path: str) -> None:
        for node in self._take(path).values():
            if isinstance(node, int):
                os.close(node)

    def _take(self, path: str) -> dict[str, Any]:
        """Remove what is at a path; gives the nodes at it and below."""
        self.changed()
        own = [one for one in list(self._nodes) if path in _upwards(one)]
        nodes = {one: self._nodes.pop(one) for one in own}
        if self._mode(path):
            self._nodes[path] = GONE
        return nodes

    def leave(self, path: str, *_: Any, **__: Any) -> None:
        """chmod, chown, utime: of no consequence for memory, but for whether it is there."""
        self.lstat(path)


def on_change(call: Callable[[], None]) -> None:
    """From now on, call this whenever the script changes a file or directory."""
    for tree in _installed:
        tree.changed = call


def path_for_kernel(path: Any) -> Any:
    """Under which path the kernel knows a file, which may be the script's own."""
    for tree in _installed:
        own = tree._path(path)
        node = own and tree._find(own)
        if isinstance(node, int):
            return f"/proc/self/fd/{node}"
        if isinstance(node, str) and node != own:
            return node
        if own and isinstance(node, Directory):  # it knows none: the nearest that is real
            return tree.nearest(own)
    return path


def _error(number: int, path: Any = None) -> OSError:
    return OSError(number, os.strerror(number), path)


def _absolute(cwd: str, path: str) -> str:
    return "/" + posixpath.normpath(posixpath.join(cwd, path)).lstrip("/")


def _upwards(path: str) -> Iterator[str]:
    """The path and the directories above it."""
    while path not in ("/", ""):
        yield path
        path = posixpath.dirname(path)

"""Files that a traced script writes live in memory, and nobody has to remove them.

A file that Python code opens for writing becomes a memory file (memfd), which the kernel frees with
the last process that holds it, however that ends. What the script then sees is the real tree with
its own changes on top: it reads what it wrote, and what it removed is gone, for itself alone.
Nothing real is made, changed or removed.

Programs that it starts, and C code that opens paths by itself, see the real tree only, unless it is
given the path from `path_for_kernel`. With
Landlock they can write nothing there; without it programs are refused, but such C code is not
stopped (see `confine`). Hard links and os.truncate see the real tree as well, and are refused.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import os
import pathlib
import posixpath
import shutil
import stat
import sys
import tempfile
from typing import Any, Callable, Iterator

KEPT_BYTES = 2 * 2**30  # with this much in its files, none is opened for writing any more
COPIED_BYTES = 64 * 2**20  # the largest existing file that may be opened to be changed in place
LINKS = 40  # followed for one path, as in Linux
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_TEMPORARY = getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY
_REAL = ("/dev/", "/proc/")  # devices, and the memory files themselves; /dev/shm is not real

_open, _fd_open, _stat, _lstat = builtins.open, os.open, os.stat, os.lstat
_FileIO = io.FileIO
_listdir, _scandir, _access, _readlink = os.listdir, os.scandir, os.access, os.readlink
_chdir, _getcwd, _statvfs = os.chdir, os.getcwd, os.statvfs
_installed: list[Tree] = []
DIRECTORY, GONE = object(), object()


def _error(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)


class Entry:
    """What `os.scandir` gives for what only the script has."""

    def __init__(self, tree: Tree, directory: str, name: str) -> None:
        self.name = name
        self.path = posixpath.join(directory, name)
        self._tree = tree

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._tree.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(follow=False))

    def _mode(self, follow: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow).st_mode
        except FileNotFoundError:  # a link to nowhere
            return 0


class Entries:
    """The iterator and context manager that `os.scandir` returns."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class Tree:
    """The file tree as the script left it. Its methods stand in for functions of `os`.

    Bound methods serve as such even where a class keeps one as an attribute, as pathlib did up to
    Python 3.10.
    """

    def __init__(self) -> None:
        # What the script made or removed: a memory file, a link's target as written, DIRECTORY or
        # GONE. What is real at these paths and below them is hidden.
        self._nodes: dict[str, Any] = {}
        self._has_links = False
        self._cwd: str | None = None  # where the script went, if that is no real directory
        self.changed: Callable[[], None] = lambda: None  # called when something is

    def install(self) -> None:
        """Put its methods in the place of functions of `os`."""
        _installed[:] = [self]
        own = (
            *("stat", "lstat", "statvfs", "access", "listdir", "scandir", "readlink"),
            *("chdir", "getcwd"),
            *("mkdir", "rmdir", "remove", "rename", "symlink"),
        )
        functions: dict[str, Any] = {name: getattr(self, name) for name in own}
        functions.update(open=self.open_fd, unlink=self.remove, replace=self.rename)
        for name in ("chmod", "lchmod", "chown", "lchown", "utime", "setxattr", "removexattr"):
            functions[name] = self.leave
        functions["listxattr"] = lambda path=None, **_: []
        keeper = getattr(pathlib, "_NormalAccessor", None)  # up to Python 3.10
        for name, function in functions.items():
            for place in (os, keeper):
                if hasattr(place, name):
                    setattr(place, name, function)
        builtins.open = io.open = self.open
        io.FileIO = _raw_files(self)  # type: ignore[misc]
        if keeper is not None and sys.version_info >= (3, 10):
            keeper.open = self.open
        shutil.__dict__["rmtree"] = self.rmtree
        importlib.reload(tempfile)  # it keeps functions of `os` as well

    # ---- paths

    def _path(self, path: Any, dir_fd: int | None = None, follow: bool = True) -> str | None:
        """Absolute, through the script's own links, the last name itself only if it is to `follow`;
        None for what is left to the kernel."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if not text:
            return None
        if dir_fd is not None:
            text = posixpath.join(_readlink(f"/proc/self/fd/{dir_fd}"), text)
        text = _absolute(self.getcwd(), text)
        for _ in range(LINKS):
            names = _upwards(text if follow else posixpath.dirname(text))
            link = next((name for name in names if isinstance(self._nodes.get(name), str)), None)
            if link is None:
                break
            target = _absolute(posixpath.dirname(link), self._nodes[link])
            text = _absolute(target, text[len(link) + 1 :])
        else:
            raise _error(errno.ELOOP, path)
        if text.startswith(_REAL) and not text.startswith("/dev/shm/"):
            return None
        return text

    def _is_hidden(self, path: str) -> bool:
        return bool(self._nodes) and any(above in self._nodes for above in _upwards(path))

    def _own(self, path: str) -> bool:
        return self._nodes.get(path, GONE) is not GONE

    def exists(self, path: str) -> bool:
        if self._is_hidden(path):
            return self._own(path)
        try:
            _lstat(path)
        except OSError:
            return False
        return True

    def _is_directory(self, path: str, follow: bool = True) -> bool:
        try:
            return stat.S_ISDIR(self.stat(path, follow_symlinks=follow).st_mode)
        except OSError:
            return False

    def _needs_parent(self, path: str) -> None:
        if not self._is_directory(posixpath.dirname(path)):
            raise _error(errno.ENOENT, path)

    # ---- reading

    def stat(self, path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> Any:
        real = _stat if follow_symlinks else _lstat
        own = self._path(path, dir_fd, follow_symlinks)
        if own is None:
            return real(path) if dir_fd is None else real(path, dir_fd=dir_fd)
        node = self._nodes.get(own)
        if isinstance(node, int):
            return os.fstat(node)
        if self._own(own):
            return _stat("/") if node is DIRECTORY else _lstat("/proc/self")  # which is a link
        if self._is_hidden(own):
            raise _error(errno.ENOENT, path)
        return real(own)

    def lstat(self, path: Any, *, dir_fd: Any = None) -> Any:
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def statvfs(self, path: Any) -> Any:
        """Of a file system: what only the script has counts as if it were in the nearest directory
        that is real."""
        own = self._path(path)
        if own is None:
            return _statvfs(path)
        if not self.exists(own):
            raise _error(errno.ENOENT, path)
        return _statvfs(next((p for p in _upwards(own) if not self._own(p)), "/"))

    def access(self, path: Any, mode: int, **_: Any) -> bool:
        own = self._path(path)
        if own is None:
            return _access(path, mode)
        if not self.exists(own):
            return False
        # What it may write here need not be writable there.
        return self._own(own) or _access(own, mode & ~os.W_OK)

    def readlink(self, path: Any, *, dir_fd: Any = None) -> Any:
        own = self._path(path, dir_fd, follow=False)
        if own is None:
            return _readlink(path) if dir_fd is None else _readlink(path, dir_fd=dir_fd)
        target = self._nodes.get(own)
        if not isinstance(target, str):
            if self._is_hidden(own):
                raise _error(errno.EINVAL if self._own(own) else errno.ENOENT, path)
            target = _readlink(own)
        return os.fsencode(target) if isinstance(path, bytes) else target

    def _names(self, directory: str) -> list[str]:
        """What the script itself put into a directory."""
        inside = directory.rstrip("/") + "/"
        below = (p[len(inside) :] for p in self._nodes if p.startswith(inside) and self._own(p))
        return sorted(name for name in below if "/" not in name)

    def listdir(self, path: Any = None) -> list[Any]:
        path = "." if path is None else path
        own = self._path(path)
        if own is None:
            return _listdir(path)
        names = [entry.name for entry in self.scandir(own)]
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def scandir(self, path: Any = None) -> Any:
        path = "." if path is None else path
        own = self._path(path)
        if own is None or isinstance(path, bytes):
            return _scandir(path)
        shown = os.fspath(path)
        added = self._names(own)
        real: list[Any] = []
        if self._nodes.get(own) is not DIRECTORY:
            if self._is_hidden(own):
                raise _error(errno.ENOENT, path)
            if self._cwd or self._has_links:
                real = [Entry(self, shown, name) for name in _listdir(own)]
            else:
                with _scandir(path) as entries:
                    real = list(entries)
            real = [e for e in real if posixpath.join(own, e.name) not in self._nodes]
        return Entries([*real, *(Entry(self, shown, name) for name in added)])

    def chdir(self, path: Any) -> None:
        own = self._path(path)
        if own and self._nodes.get(own) is DIRECTORY:
            self._cwd = own
        else:
            _chdir(path if own is None else own)
            self._cwd = None

    def getcwd(self) -> str:
        return self._cwd or _getcwd()

    # ---- writing

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """`open`: every path passes through `open_fd`."""
        if not isinstance(file, int) and len(args) < 6 and kwargs.get("opener") is None:
            kwargs["opener"] = self.open_fd
        return _open(file, mode, *args, **kwargs)

    def open_raw(self, file: Any, path: Any, mode: str, closefd: bool, opener: Any) -> None:
        """`io.FileIO`."""
        if not isinstance(path, int) and opener is None:
            opener = self.open_fd
        _FileIO.__init__(file, path, mode, closefd, opener)

    def open_fd(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        """`os.open`."""
        own = self._path(path, dir_fd)
        if own is None:
            return _fd_open(path, flags, mode, dir_fd=dir_fd)
        if flags & _CHANGES and self._bytes_in_files() >= KEPT_BYTES:
            raise _error(errno.ENOSPC, path)
        if _TEMPORARY and flags & _TEMPORARY:
            return os.memfd_create("temporary")
        if flags & os.O_CREAT and flags & os.O_EXCL and self.exists(own):
            raise _error(errno.EEXIST, path)
        if not isinstance(self._nodes.get(own), int):
            if self._nodes.get(own) is DIRECTORY and not flags & _CHANGES:
                return os.memfd_create("directory")  # opened to be synced
            if flags & _CHANGES:
                self._adopt(own, path, flags)
            elif self._is_hidden(own):
                raise _error(errno.ENOENT, path)
            else:
                moved = self._cwd or dir_fd or self._has_links
                return _fd_open(own if moved else path, flags, mode)
        again = flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return _fd_open(f"/proc/self/fd/{self._nodes[own]}", again)

    def _bytes_in_files(self) -> int:
        files = (node for node in self._nodes.values() if isinstance(node, int))
        return sum(os.fstat(fd).st_blocks * 512 for fd in files)

    def _adopt(self, own: str, path: Any, flags: int) -> None:
        """Give the script a file of its own at a path, with the real file's content."""
        there = self.exists(own)
        if not there and not flags & os.O_CREAT:
            raise _error(errno.ENOENT, path)
        if there and self._is_directory(own):
            raise _error(errno.EISDIR, path)
        self._needs_parent(own)
        keeps = there and not flags & os.O_TRUNC
        if keeps and _stat(own).st_size > COPIED_BYTES:
            raise _error(errno.EROFS, path)
        self.changed()
        fd = os.memfd_create(posixpath.basename(own)[-200:])
        if keeps:
            with _open(own, "rb") as real, _open(fd, "wb", closefd=False) as copy:
                copy.write(real.read())
        self._nodes[own] = fd

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        own = self._path(path, dir_fd, follow=False)
        if own is None or self.exists(own):
            raise _error(errno.EEXIST, path)
        self._needs_parent(own)
        self.changed()
        self._nodes[own] = DIRECTORY

    def _forget(self, own: str) -> None:
        """Drop what is at a path and below it."""
        self.changed()
        for path in [p for p in self._nodes if own in _upwards(p)]:
            node = self._nodes.pop(path)
            if isinstance(node, int):
                os.close(node)
        if self.exists(own):
            self._nodes[own] = GONE

    def remove(self, path: Any, *, dir_fd: Any = None) -> None:
        own = self._path(path, dir_fd, follow=False)
        if own is None:
            raise _error(errno.EPERM, path)
        if not self.exists(own):
            raise _error(errno.ENOENT, path)
        if self._is_directory(own, follow=False):
            raise _error(errno.EISDIR, path)
        self._forget(own)

    def rmdir(self, path: Any, *, dir_fd: Any = None) -> None:
        own = self._path(path, dir_fd, follow=False)
        if own is None:
            raise _error(errno.EPERM, path)
        if not self._is_directory(own, follow=False):
            raise _error(errno.ENOTDIR if self.exists(own) else errno.ENOENT, path)
        if self.listdir(own):
            raise _error(errno.ENOTEMPTY, path)
        self._forget(own)

    def rmtree(self, path: Any, ignore_errors: bool = False, *_: Any, **__: Any) -> None:
        own = self._path(path, follow=False)
        if own is not None and self._is_directory(own, follow=False):
            self._forget(own)
        elif not ignore_errors:
            there = own is not None and self.exists(own)
            raise _error(errno.ENOTDIR if there else errno.ENOENT, path)

    def rename(self, src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        old = self._path(src, src_dir_fd, follow=False)
        new = self._path(dst, dst_dir_fd, follow=False)
        if old is None or new is None:
            raise _error(errno.EPERM, src)
        if not self.exists(old):
            raise _error(errno.ENOENT, src)
        if old == new:
            return
        self._needs_parent(new)
        onto = self._is_directory(new, follow=False)
        if self.exists(new) and onto != self._is_directory(old, follow=False):
            raise _error(errno.EISDIR if onto else errno.ENOTDIR, dst)
        self._copy(old, new)
        self._forget(old)

    def _copy(self, old: str, new: str) -> None:
        """Files share their memory: of two names, one is about to go."""
        if self._is_directory(old, follow=False):
            if not self._is_directory(new):
                self._nodes[new] = DIRECTORY
            for name in self.listdir(old):
                self._copy(posixpath.join(old, name), posixpath.join(new, name))
            return
        if stat.S_ISLNK(self.lstat(old).st_mode):
            target = self.readlink(old)
            self._forget(new)
            self._nodes[new], self._has_links = target, True
            return
        if not isinstance(self._nodes.get(old), int):
            self._adopt(old, old, os.O_RDWR)
        self._forget(new)
        self._nodes[new] = os.dup(self._nodes[old])

    def symlink(self, src: Any, dst: Any, *_: Any, dir_fd: Any = None, **__: Any) -> None:
        link = self._path(dst, dir_fd, follow=False)
        if link is None or self.exists(link):
            raise _error(errno.EEXIST, dst)
        self._needs_parent(link)
        self.changed()
        self._nodes[link], self._has_links = os.fsdecode(src), True

    def leave(self, path: Any, *_: Any, follow_symlinks: bool = True, **__: Any) -> None:
        """chmod, chown, utime: of no consequence for memory, but for whether it is there."""
        own = self._path(path, follow=follow_symlinks)
        if own is not None and not self.exists(own):
            raise _error(errno.ENOENT, path)


def _raw_files(tree: Tree) -> Any:
    """`io.FileIO`, which every file in binary mode that is not buffered is one of."""

    class Kind(type(_FileIO)):  # type: ignore[misc]
        def __instancecheck__(cls, thing: Any) -> bool:
            return isinstance(thing, _FileIO)

    class FileIO(_FileIO, metaclass=Kind):
        def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None):
            tree.open_raw(self, file, mode, closefd, opener)

    return FileIO


def on_change(call: Callable[[], None]) -> None:
    """From now on, call this whenever the script changes a file or directory."""
    for tree in _installed:
        tree.changed = call


def path_for_kernel(path: Any) -> Any:
    """Under which path the kernel knows a file, which may be the script's own."""
    for tree in _installed:
        fd = tree._nodes.get(tree._path(path) or "")
        if isinstance(fd, int):
            return f"/proc/self/fd/{fd}"
    return path


def _absolute(cwd: str, path: str) -> str:
    return "/" + posixpath.normpath(posixpath.join(cwd, path)).lstrip("/")


def _upwards(path: str) -> Iterator[str]:
    """The path and the directories above it."""
    while path not in ("/", ""):
        yield path
        path = posixpath.dirname(path)

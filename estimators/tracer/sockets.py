"""Sockets of a script that has no network.

Many only look for a port that is free, or for the address of their machine, and never connect. The
kernel refuses the socket itself (`confine`), so they get one that leads nowhere: it can be bound,
and has an address. Who connects, or waits to be connected to, is told that there is no network.
"""

from __future__ import annotations

import errno
import socket
import threading
import weakref
from typing import Any, Callable, NoReturn

HOST, PORT = "127.0.0.1", 29511


def install(notice: Callable[[], None]) -> None:
    """`notice` is called when the script asks for a connection."""
    kind: Any = socket.socket
    make = kind.__init__
    addresses: weakref.WeakKeyDictionary[Any, tuple[str, int]] = weakref.WeakKeyDictionary()

    def init(
        self: Any, family: int = -1, type: int = -1, proto: int = -1, fileno: Any = None
    ) -> None:
        if fileno is not None:
            make(self, family, type, proto, fileno)
            return
        try:
            make(self, family, type, proto)
        except PermissionError:
            nowhere, _ = socket.socketpair()
            one = (socket.AF_INET, socket.SOCK_STREAM, 0)
            given = (
                mine if mine != -1 else usual for mine, usual in zip((family, type, proto), one)
            )
            make(self, *given, nowhere.detach())
            addresses[self] = HOST, 0

    def bind(self: Any, address: Any) -> None:
        port = address[1] if isinstance(address, tuple) else 0
        addresses[self] = HOST, port or PORT + len(addresses)

    def connect(self: Any, address: Any) -> None:
        if self.type & socket.SOCK_DGRAM:  # nothing is sent: it learns which address it would have
            bind(self, address)
        else:
            refuse(self)

    def try_to_connect(self: Any, address: Any) -> int:
        notice()
        return errno.ENETUNREACH

    def refuse(self: Any, *_: Any) -> NoReturn:
        notice()
        raise OSError(errno.ENETUNREACH, "Network is unreachable: a trace has none")

    def accept(self: Any) -> NoReturn:
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # nobody comes; else a server's thread would try for ever
        refuse(self)

    stand_ins: dict[str, Callable[..., Any]] = {
        "bind": bind,
        "connect": connect,
        "connect_ex": try_to_connect,
        "accept": accept,
        "listen": lambda *_: None,
        "setsockopt": lambda *_: None,
        "getsockname": lambda self: addresses[self],
    }
    kind.__init__ = init
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        setattr(socket, name, _asking(getattr(socket, name), notice))
    for name, stand_in in stand_ins.items():
        setattr(kind, name, _either(getattr(kind, name), stand_in, addresses))


def _asking(resolve: Callable[..., Any], notice: Callable[[], None]) -> Callable[..., Any]:
    """Names that this machine knows itself have addresses."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        try:
            return resolve(*args, **kwargs)
        except OSError:
            notice()
            raise

    return ask


def _either(real: Any, stand_in: Any, ours: Any) -> Callable[..., Any]:
    return lambda self, *args: (stand_in if self in ours else real)(self, *args)

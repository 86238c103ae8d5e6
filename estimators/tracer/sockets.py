"""Sockets of a script that has no network.

Many only look for a port that is free, or for the address of their machine, and never connect. The
kernel refuses the socket itself (`confine`), so they get one that leads nowhere: it can be bound,
and has an address. Who connects, or waits to be connected to, is told that there is no network.
"""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any, Callable, NoReturn

HOST, PORT = "127.0.0.1", 29511


def install(notice: Callable[[], None]) -> None:
    """`notice` is called when the script asks for a connection."""
    kind: Any = socket.socket
    make = kind.__init__

    def init(
        self: Any, family: int = -1, type: int = -1, proto: int = -1, fileno: Any = None
    ) -> None:
        try:
            make(self, family, type, proto, fileno)
        except PermissionError:
            usual = (socket.AF_INET, socket.SOCK_STREAM, 0)
            of = (one if one != -1 else other for one, other in zip((family, type, proto), usual))
            nowhere, _ = socket.socketpair()
            make(self, *of, nowhere.detach())

    def connect(self: Any, address: Any) -> None:
        if not self.type & socket.SOCK_DGRAM:  # which sends nothing, and has an address now
            refuse()

    def try_to_connect(self: Any, address: Any) -> int:
        notice()
        return errno.ENETUNREACH

    def refuse(*_: Any) -> NoReturn:
        notice()
        raise OSError(errno.ENETUNREACH, "Network is unreachable: a trace has none")

    def accept(self: Any) -> NoReturn:
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # nobody comes; else a server's thread would try for ever
        refuse()

    def ask(resolve: Callable[..., Any]) -> Callable[..., Any]:
        """Resolves the names that need no network, such as this machine's own."""

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return resolve(*args, **kwargs)
            except OSError:
                notice()
                raise

        return call

    kind.__init__ = init
    kind.connect, kind.connect_ex, kind.accept = connect, try_to_connect, accept
    kind.bind = kind.listen = kind.setsockopt = lambda *_: None
    kind.getsockname = lambda self: (HOST, PORT + self.fileno())
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        setattr(socket, name, ask(getattr(socket, name)))

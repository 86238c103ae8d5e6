"""What a step of several tasks reads and prints: its input goes to each, and each line of theirs
gets the number of its task. Threads do it: they begin once all tasks are forked."""

from __future__ import annotations

import os
import selectors
import threading
from contextlib import suppress
from queue import SimpleQueue

BLOCK = 65536


def copy_input(pipes: list[int]) -> None:
    """Begin to write standard input to each of these. A task that reads slowly, or nothing, delays
    no other: what it has not read is kept."""
    queues: list[SimpleQueue[bytes]] = []
    for pipe in pipes:
        queue: SimpleQueue[bytes] = SimpleQueue()
        queues.append(queue)
        threading.Thread(target=_write, args=(pipe, queue), daemon=True).start()
    threading.Thread(target=_read, args=(queues,), daemon=True).start()


def _read(queues: list[SimpleQueue[bytes]]) -> None:
    data = b"-"
    while data:
        try:
            data = os.read(0, BLOCK)
        except OSError:
            data = b""  # it is closed
        for queue in queues:
            queue.put(data)


def _write(pipe: int, queue: SimpleQueue[bytes]) -> None:
    with suppress(OSError):  # the task has closed it or ended
        while data := queue.get():
            while data:
                data = data[os.write(pipe, data) :]
    os.close(pipe)


def label(pipes: dict[int, int]) -> threading.Thread:
    """Begin to pass on lines, each with the number of its task. `pipes`: the number by the pipe."""
    thread = threading.Thread(target=_label, args=(pipes,), daemon=True)
    thread.start()
    return thread


def _label(pipes: dict[int, int]) -> None:
    left = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector, suppress(OSError):  # nobody reads it any more
        _copy_lines(pipes, left, selector)
    for fd in left:  # a task that writes more learns of it
        os.close(fd)


def _copy_lines(
    pipes: dict[int, int], left: dict[int, bytes], selector: selectors.BaseSelector
) -> None:
    """`left`: of each pipe that is open, the beginning of a line."""
    for fd in pipes:
        selector.register(fd, selectors.EVENT_READ)
    while left:
        for key, _ in selector.select():
            fd = key.fd
            read = os.read(fd, BLOCK)
            *lines, left[fd] = (left[fd] + read).split(b"\n")
            if not read and left[fd]:
                lines.append(left[fd])
            for line in lines:
                os.write(1, b"%d: %s\n" % (pipes[fd], line))
            if not read:
                selector.unregister(fd)
                os.close(fd)
                del left[fd]

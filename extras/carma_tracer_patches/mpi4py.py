"""mpi4py: one process, which has nobody to talk to. The real module starts MPI when it is imported,
for which a trial has no sockets: it would end it."""

from __future__ import annotations

import sys
from typing import Any

MADE_FOR = "4.1"
CONSTANTS = ("SUM", "MAX", "MIN", "PROD", "COMM_TYPE_SHARED", "IN_PLACE")


class Communicator:
    rank, size, name = 0, 1, "MPI_COMM_WORLD"

    Get_rank, Get_size = (lambda self: self.rank), (lambda self: self.size)

    def bcast(self, value: Any, *_: Any, **__: Any) -> Any:
        return value

    reduce = allreduce = scan = bcast

    def gather(self, value: Any, *_: Any, **__: Any) -> list[Any]:
        return [value]

    allgather = alltoall = gather

    def scatter(self, values: Any, *_: Any, **__: Any) -> Any:
        return values[0]

    def Barrier(self, *_: Any, **__: Any) -> None:
        pass

    barrier = Bcast = Free = Barrier

    def Allreduce(self, given: Any, out: Any, *_: Any, **__: Any) -> None:
        out[...] = given

    def Split(self, *_: Any, **__: Any) -> Communicator:
        return self

    Dup = Clone = Split_type = Split

    def Abort(self, code: int = 1) -> None:
        sys.exit(code)


def fill(module: Any, tracer: Any) -> None:
    module.Comm = module.Intracomm = Communicator
    module.COMM_WORLD, module.COMM_SELF, module.COMM_NULL = Communicator(), Communicator(), None
    module.Is_initialized, module.Is_finalized = (lambda: True), (lambda: False)
    module.Init = module.Finalize = lambda *_: None
    module.Get_processor_name = lambda: "localhost"
    vars(module).update({name: number for number, name in enumerate(CONSTANTS)})


STAND_INS = {"mpi4py.MPI": fill}

"""What a page's form sends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

Given = Mapping[str, str]
MOST_BYTES = 1 << 20
MOST_FIELDS = 1_000


def form_endpoint(
    act: Callable[[Request, Given], Response],
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """An endpoint that calls `act`, which may block, with the form's fields."""

    async def endpoint(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise HTTPException(413, "the form is too long")
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        except ValueError:
            raise HTTPException(400, "the form cannot be read") from None
        return await run_in_threadpool(act, request, dict(pairs))

    return endpoint

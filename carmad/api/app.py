"""The app: the routes of all resources."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from carmad.api import (
    actions,
    estimates,
    fairness,
    gpus,
    intake,
    jobs,
    mail,
    models,
    reservations,
    server,
    stream,
    terminal,
    timeline,
)
from carmad.api.service import Service
from carmad.errors import CarmaError
from carmad.http.bounds import Bounded
from carmad.http.connections import FREE, Peers
from carmad.http.problems import answer_problem
from carmad.http.shares import Shares
from carmad.installed import VERSION

log = logging.getLogger(__name__)

RESOURCES = (  # in the order of the reference
    *(intake, jobs, terminal, stream, actions, estimates, gpus, reservations, models),
    *(fairness, timeline, mail, server),
)


def create_app(service: Service, plugged: Mapping[str, APIRouter] | None = None) -> FastAPI:
    """`plugged`: routers of packages, by name; what they add is below /v1, and never instead of
    ours. One that FastAPI does not take is logged and left out."""
    app = FastAPI(
        title="CARMA",
        version=VERSION,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # the docs pages load scripts from the Internet
        redoc_url=None,
        redirect_slashes=False,
        # Of one that is included, FastAPI makes all routes again when the first request comes.
        routes=[route for each in RESOURCES for route in each.router.routes],
    )
    for name, router in (plugged or {}).items():
        try:
            app.include_router(router, prefix="/v1")
        except Exception:  # foreign code
            log.exception("the routes %s cannot be added, and are left out", name)
    app.state.service = service
    app.state.peers = Peers(service.settings.access.admin_group)
    app.add_middleware(Bounded, shares=Shares(*FREE))
    for kind in (CarmaError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_problem)
    return app

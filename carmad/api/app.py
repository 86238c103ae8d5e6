"""The app: the routes of all resources."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from carmad.api import (
    actions,
    cron,
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
from carmad.http.connections import FREE, Owners, Peers
from carmad.http.problems import answer_problem
from carmad.http.turns import Shares
from carmad.installed import VERSION

RESOURCES = (  # in the order of the reference
    *(intake, jobs, terminal, stream, actions, estimates, gpus, reservations, cron, models),
    *(fairness, timeline, mail, server),
)


def create_app(service: Service, plugged: Sequence[APIRouter] = ()) -> FastAPI:
    """`plugged`: routers of packages; what they add is below /v1, and never instead of ours."""
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
    for router in plugged:
        app.include_router(router, prefix="/v1")
    app.state.service = service
    app.state.peers = Peers(service.settings.access.admin_group)
    app.state.owners = Owners()
    app.state.shares = Shares(*FREE)
    state = app.state
    app.add_middleware(Bounded, peers=state.peers, owners=state.owners, shares=state.shares)
    for kind in (CarmaError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_problem)
    return app

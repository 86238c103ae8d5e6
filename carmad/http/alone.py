"""Estimates without a daemon: in the user's own process, without GPUs or earlier jobs."""

from __future__ import annotations

import json
import os
from typing import Any

from pydantic import ValidationError

from carmad.api.requests import EstimateIn
from carmad.api.responses.estimates import EstimatesOut
from carmad.config import Settings
from carmad.core.messages import Discovered, Step
from carmad.errors import CarmaError
from carmad.http.estimated import estimates_out
from carmad.http.intake import job_spec
from carmad.http.peers import Peer, user_of
from carmad.http.problems import invalid
from carmad.learned.estimates import explained, patient
from carmad.learned.experience import Experience


def estimated(body: dict[str, Any], explain: bool) -> EstimatesOut:
    """The answer of `/v1/estimate` to `body`. Raises CarmaError."""
    try:
        asked = EstimateIn.model_validate_json(json.dumps(body))
    except ValidationError as error:
        raise CarmaError(invalid(error.errors())) from None
    user, named = user_of(os.getuid())
    me = Peer(os.getuid(), os.getgid(), user, admin=False, named=named)
    spec = job_spec(asked, me, (), ())
    settings = patient(Settings(), asked.within_s)
    experience = Experience(settings)
    experience.committed(Step((Discovered(0.0, ()),), (), (), ()))
    return estimates_out(*explained(settings, experience.server(explain), spec))

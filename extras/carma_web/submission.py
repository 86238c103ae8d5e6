"""The form for a new job, and the preview that comes before it is submitted: the dry run and the
memory estimate of `carma`, of exactly what will be submitted."""

from __future__ import annotations

import os
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from carma_web import forms
from carma_web.forms import Field, Given, carma, form_endpoint
from carma_web.job import LABEL
from carma_web.once import once
from carma_web.page import Page, Piece, Share, go_on, pieces, shares
from carmad.errors import CarmaError
from cli import client, estimate_view, estimation, render
from cli.problems import Unknown

if TYPE_CHECKING:
    from carmad.api.guesses import EstimateOut, EstimatesOut
    from carmad.api.intake import DryRunOut

KEPT = 50  # previews
ESTIMATE_S = 900.0
ESTIMATING = threading.BoundedSemaphore(2)  # each is a process that imports the user's libraries


@dataclass(slots=True)
class Draft:
    """What was filled in, and what would become of it. `label`: of the job, once submitted.
    `doubt`: it may have been submitted, or not."""

    given: Given
    words: list[str]
    folder: Path
    answer: DryRunOut
    notes: tuple[str, ...]
    estimate: EstimatesOut | None = None
    failed: CarmaError | None = None  # instead of an estimate
    label: str = ""
    doubt: CarmaError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self) -> None:
        """For the estimate, which may take a while."""
        words = ["estimate", "--json", *self.words]
        try:
            with ESTIMATING:
                self.estimate, _ = carma(words, self.folder, ESTIMATE_S)
        except CarmaError as error:
            self.failed = error


DRAFTS: OrderedDict[str, Draft] = OrderedDict()  # by what a preview's address ends in


class Form(Page):
    template = "submit.html.j2"
    title = "New job"
    section = "/submit"
    error: CarmaError | None = None

    @classmethod
    def show(cls, request: Request) -> Response:
        if request.app.state.read_only:
            raise HTTPException(404, "these pages only show: jobs are submitted with carma submit")
        return cls(request).response()

    @once
    def values(self) -> Given:
        """What the fields begin with."""
        asked = self.request.query_params
        if draft := DRAFTS.get(asked.get("draft", "")):
            return draft.given
        if LABEL.fullmatch(again := asked.get("again", "")):
            return forms.of_job(client.get(f"/v1/jobs/{again}"))
        return {}

    @property
    def folder(self) -> str:
        return self.values.get("folder") or str(Path.cwd())

    @property
    def first(self) -> list[Field]:
        return forms.first()

    @property
    def sections(self) -> list[tuple[str, list[Field]]]:
        return forms.sections()

    @property
    def fault(self) -> str:
        """The field that the error is about."""
        if self.error is None:
            return ""
        about_folder = str(self.error).startswith("cannot run in")
        return "folder" if about_folder else forms.at_fault(str(self.error))

    def is_filled(self, section: list[Field]) -> bool:
        """Or at fault: it is shown open."""
        return any(self.values.get(each.name) or each.name == self.fault for each in section)


class Preview(Page):
    template = "preview.html.j2"
    title = "Preview"
    section = "/submit"

    @once
    def draft(self) -> Draft:
        found = DRAFTS.get(self.name)
        if found is None:
            raise HTTPException(404, "this preview is not known any more: fill in the form again")
        return found

    @property
    def name(self) -> str:
        return draft_name(self.request)

    @property
    def command(self) -> list[str]:
        return ["carma", "submit", *self.draft.words]

    @property
    def would(self) -> list[Piece]:
        return pieces(render.dry_run(self.draft.answer))

    @property
    def outlook(self) -> str:
        found: Any = self.draft.answer.get("outlook")
        return str(found["text"]) if found else ""

    @property
    def has_answer(self) -> bool:
        """Whether the estimate has come, or will not."""
        return self.draft.estimate is not None or self.draft.failed is not None

    @property
    def need(self) -> str:
        assert self.draft.estimate is not None
        return estimate_view.need(self.draft.estimate)

    @property
    def estimates(self) -> list[tuple[EstimateOut, str]]:
        assert self.draft.estimate is not None
        return list(estimate_view.with_notes(self.draft.estimate["estimates"]))

    @property
    def parts(self) -> list[Share]:
        assert self.draft.estimate is not None
        one = estimation.choice(self.draft.estimate)
        return shares(one["parts"] if one else {})


def preview(request: Request, given: Given) -> Response:
    try:
        words = forms.to_submit(given)
        folder = Path(os.path.expanduser(given.get("folder", "").strip() or "."))  # noqa: PTH111
        answer, notes = carma(["submit", "--json", "--dry-run", *words], folder.absolute())
    except CarmaError as error:
        form = Form(request)
        form.values, form.error = given, error
        return form.response()
    draft = Draft(given, words, folder.absolute(), answer, notes)
    name = secrets.token_urlsafe(12)
    DRAFTS[name] = draft
    while len(DRAFTS) > KEPT:
        DRAFTS.popitem(last=False)
    threading.Thread(target=draft.ask, name="estimate", daemon=True).start()
    return _redirect(request, name)


def _redirect(request: Request, name: str) -> Response:
    return RedirectResponse(f"{request.app.state.base}/submit/{name}", 303)


def draft_name(request: Request) -> str:
    return str(request.path_params["draft"])


def submit(request: Request, given: Given) -> Response:
    """Once for each preview, however often its button is pressed; if nobody knows whether that
    worked, again only by another button."""
    draft = Preview(request).draft
    with draft.lock:
        if draft.label:
            text = (
                f"job {draft.label} was already submitted: to submit it again, fill in a new form"
            )
            return go_on(request, f"/jobs/{draft.label}", text)
        if draft.doubt and "again" not in given:
            return _redirect(request, draft_name(request))
        draft.doubt = None
        try:
            answer, notes = carma(["submit", "--json", *draft.words], draft.folder)
        except CarmaError as error:
            if getattr(error, "code", "") == Unknown.code:
                draft.doubt = error
                return _redirect(request, draft_name(request))
            form = Form(request)
            form.values, form.error = draft.given, error
            return form.response()
        draft.label = answer["label"]
    said = "; ".join((f"submitted job {draft.label}", *notes))
    return go_on(request, f"/jobs/{draft.label}", said)


ROUTES = [
    Route("/submit", Form.show),
    Route("/submit", form_endpoint(preview), methods=["POST"]),
    Route("/submit/{draft}", Preview.show),
    Route("/submit/{draft}", form_endpoint(submit), methods=["POST"]),
]

"""The page and the JSON API behind it. What the API says about a setting is what the command line prints with --json."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

import betastar
from betastar.answers import json_answers, targets, wording
from betastar.answers.json_answers import Answer
from betastar.web import live_curves, models, words
from betastar.web.models import AskAnswerOfPage, AskOfPage, AskTargetOfPage, OverEpochs, Problem, Tradeoff, answer_models
from betastar.web.plotly_script import plotly_script
from betastar.web.worker import BusyError, Worker, WorkerEndedError

PAGE = Path(__file__).parent / "page"
FILES = {"": "index.html"} | {
    name: name
    for name in ("style.css", "app.js", "answers.js", "asking.js", "charts.js", "pins.js", "rounding.js", "state.js", "taking.js")
}
#: Nobody waits longer than this for one answer, or for a curve while a slider moves.
SECONDS, MOVING = 10.0, 3.0
#: Of that, for the exact line over the epochs (while a slider moves, and at rest), and for its certified band.
GLANCE, EXACT, CERTIFYING = 0.03, 1.0, 2.5
#: Whoever is refused because too many others ask may ask again after so many seconds.
RETRY = 2
#: Names under which a browser on this machine reaches the page; any other name is another site's.
HOSTS = ["127.0.0.1", "localhost"]
#: The page asks nobody but this server. Plotly sets styles on its elements.
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def create_app() -> FastAPI:
    app = FastAPI(
        title="betastar",
        version=betastar.__version__,
        summary="How well does a model trained with DP-SGD resist a named attack?",
        docs_url=None,  # its pages would load scripts from elsewhere
        redoc_url=None,
    )
    app.middleware("http")(_for_this_site_only)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)
    app.exception_handler(RequestValidationError)(_not_valid)
    app.exception_handler(ResponseValidationError)(_not_as_described)
    app.exception_handler(ValueError)(_refused)
    app.exception_handler(TypeError)(_refused)
    app.exception_handler(ArithmeticError)(_beyond)
    app.exception_handler(BusyError)(_busy)
    app.exception_handler(WorkerEndedError)(_ended)
    # The number does not wait for the curves, nor these for what is done at leisure.
    numbers, curves, leisure = app.state.workers = Worker(), Worker(patience=5), Worker(patience=10)
    bad: dict[int | str, dict[str, Any]] = {
        403: {"model": Problem, "description": "Another site asked."},
        422: {"model": Problem, "description": "What was wrong, in a sentence."},
        500: {"model": Problem, "description": "The process that computes was ended, or its answer was not as it must be."},
        503: {"model": Problem, "description": "Too many questions at once; the header Retry-After says when to ask again."},
    }

    answer, calibrated = answer_models()

    @app.get("/api/analyze", response_model=answer, response_model_exclude_unset=True, responses=bad)
    def analyze(ask: Annotated[AskAnswerOfPage, Query()]) -> Answer:
        """`betastar analyze --json`; the advice is left out unless it is asked for."""
        return (leisure if ask.rest else numbers).ask(SECONDS, json_answers.answer, ask.setting(), ask.advice)

    @app.get("/api/calibrate", response_model=calibrated, response_model_exclude_unset=True, responses=bad)
    def calibrate(ask: Annotated[AskTargetOfPage, Query()]) -> Answer:
        """`betastar calibrate --json`: leave out one parameter."""
        worker = leisure if ask.rest else numbers
        return worker.ask(SECONDS, json_answers.calibrated, ask.setting(), targets.parse(ask.target))

    @app.get("/api/epochs", response_model=OverEpochs, responses=bad)
    def epochs(ask: Annotated[AskOfPage, Query()]) -> Answer:
        """β* over the epochs: exact, certified (at rest) and the paper's closed form."""
        if ask.rest:
            return leisure.ask(SECONDS, live_curves.over_epochs, ask.setting(), EXACT, CERTIFYING)
        return curves.ask(MOVING, live_curves.over_epochs, ask.setting(), GLANCE)

    @app.get("/api/tradeoff", response_model=Tradeoff, responses=bad)
    def tradeoff(ask: Annotated[AskOfPage, Query()]) -> Answer:
        """The certified trade-off curve: how many true positives an attacker can have at each false-positive rate."""
        worker, limit = (leisure, SECONDS) if ask.rest else (curves, MOVING)
        return worker.ask(limit, live_curves.tradeoff, ask.setting(), ask.rest)

    @app.get("/words.js", include_in_schema=False)
    def vocabulary() -> Response:
        return Response(words.script(), media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    @app.get("/plotly.js", include_in_schema=False)
    def plotly() -> FileResponse:
        return FileResponse(plotly_script(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    @app.get("/{name}", include_in_schema=False)
    def page(name: str) -> Response:
        if name not in FILES:
            return JSONResponse({"detail": "there is nothing here; the page is at /, the API at /openapi.json."}, 404)
        return FileResponse(PAGE / FILES[name], headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    def front() -> Response:
        return page("")

    return app


async def _for_this_site_only(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Other sites that somebody has open cannot make this server work. A link to the page may be followed from anywhere."""
    said = request.headers
    origin = said.get("origin", f"http://{said.get('host')}")
    own = said.get("sec-fetch-site", "none") in ("same-origin", "none") and origin == f"http://{said.get('host')}"
    link = (
        request.url.path == "/"
        and "origin" not in said
        and (said.get("sec-fetch-mode"), said.get("sec-fetch-dest")) == ("navigate", "document")
    )
    if own or link:
        return await answer(request)
    text = "this server answers its own page and programs on this machine, not other sites; open the page itself, at /."
    return JSONResponse({"detail": text}, 403)


async def _not_valid(request: Request, problem: Exception) -> JSONResponse:
    """Which parameter, what was given and what is allowed."""
    assert isinstance(problem, RequestValidationError)
    said = []
    for error in problem.errors():
        name = ".".join(str(part) for part in error["loc"][1:]) or "the query"
        given = repr(error.get("input"))
        numbered = error["loc"][1:2] and models.is_number(str(error["loc"][1]))
        wrong = f"{error['loc'][1]} must be {models.allowed(str(error['loc'][1]))}" if numbered else f"{name}: {error['msg']}"
        said.append(f"{wrong}, got {given if len(given) <= 80 else given[:77] + '...'}")
    return JSONResponse({"detail": "; ".join(said) + "."}, 422)


async def _not_as_described(request: Request, problem: Exception) -> JSONResponse:
    """A fault of betastar: nobody is shown an answer that is not what /openapi.json says."""
    assert isinstance(problem, ResponseValidationError)
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return JSONResponse(
        {"detail": f"the answer is not as it must be ({where}: {first['msg']}); this is a fault of betastar."}, 500
    )


async def _refused(request: Request, problem: Exception) -> JSONResponse:
    return JSONResponse({"detail": wording.explain(problem)}, 422)


async def _beyond(request: Request, problem: Exception) -> JSONResponse:
    text = f"these parameters are beyond what this method can compute ({problem}); try the method exact or affinity."
    return JSONResponse({"detail": text}, 422)


async def _busy(request: Request, problem: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(problem)}, 503, headers={"Retry-After": str(RETRY)})


async def _ended(request: Request, problem: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(problem)}, 500)

"""The JSON API of the page: the command line's JSON, and a sentence for whatever is bad."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar.vocabulary import METRICS, Metric
from betastar.web import api, models
from betastar.web.worker import Worker

from ..command import call

HERE = "http://127.0.0.1:8765"
ADULT = {"noise_multiplier": 3.51, "batch_size": 256, "dataset_size": 26048, "epochs": 20}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = api.create_app()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SECONDS", "MOVING", "GLANCE", "EXACT", "CERTIFYING"):  # a slow machine fails no test
            patch.setattr(api, name, 100.0)
        yield TestClient(app, base_url=HERE, raise_server_exceptions=False)
    for worker in app.state.workers:
        worker.stop()


def test_it_is_the_command_lines_json(client: TestClient) -> None:
    words = ["analyze", "--noise", "3.51", "--batch", "256", "--records", "26048", "--epochs", "20", "--json"]
    printed = json.loads(call(*words).stdout)
    assert client.get("/api/analyze", params={**ADULT, "advice": True}).json() == printed
    quick = client.get("/api/analyze", params=ADULT).json()
    assert quick == {key: value for key, value in printed.items() if key != "advice"}, "a slider does not wait for advice"
    words = [
        "calibrate",
        "--target",
        "success<=0.52",
        "--batch",
        "256",
        "--records",
        "26048",
        "--epochs",
        "20",
        "--metric",
        "success",
        "--json",
    ]
    printed = json.loads(call(*words).stdout)
    asked: dict[str, Any] = {**ADULT, "target": "success<=0.52", "metric": "success"}
    del asked["noise_multiplier"]
    assert client.get("/api/calibrate", params=asked).json() == printed


def test_curves_agree_with_the_core(client: TestClient) -> None:
    lines = client.get("/api/epochs", params={**ADULT, "rest": True}).json()
    risk = bs.analyze(bs.DPSGD.from_epochs(**ADULT))
    assert lines["exact"][-1] == {"at": 20, "lower": pytest.approx(risk.bayes_security.lower, abs=1e-12)}
    assert lines["band"]["method"] == "certified"
    last = lines["band"]["points"][-1]
    assert last["lower"] <= risk.bayes_security.estimate <= last["upper"]
    assert lines["paper"][-1]["estimate"] == pytest.approx(
        bs.analyze(bs.DPSGD.from_epochs(**ADULT), method="paper").bayes_security.estimate
    )
    betas = [point["lower"] for point in lines["exact"]]
    assert betas == sorted(betas, reverse=True)
    curve = client.get("/api/tradeoff", params={**ADULT, "rest": True}).json()
    truth = risk.tpr(0.01).estimate
    assert curve["tpr"][0]["lower"] <= truth <= curve["tpr"][0]["upper"] <= truth + 1e-3
    assert all(point["upper"] >= point["fpr"] for point in curve["curve"])
    rough = client.get("/api/tradeoff", params=ADULT).json()
    assert rough["tpr"][0]["upper"] >= truth


def test_a_slow_question_ends(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SECONDS", 0.01)
    slow = {"noise_multiplier": 0.4, "sample_rate": 0.0003, "steps": 10**6, "threat": "membership-add-remove"}
    answer = client.get("/api/analyze", params={**slow, "method": "certified"})
    assert answer.status_code == 422
    assert "takes longer than" in answer.json()["detail"]
    monkeypatch.undo()
    assert client.get("/api/analyze", params=ADULT).status_code == 200, "the next one is answered"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("analyze?noise_multiplier=-1", "noise_multiplier must be a number of at least 0.01 and at most 1,000,000, got '-1'"),
        ("analyze?noise_multiplier=1&batch_size=2.5", "batch_size must be a whole number of at least 1 and at most"),
        ("analyze?fpr=0.1&fpr=2", "fpr must be a number of at least 0 and at most 1, got '2'"),
        ("analyze?noise_multiplier=1&sample_rate=0.1", "steps must be given, too."),
        ("analyze?nose=1", "nose"),
        ("analyze?noise_multiplier=1&sample_rate=0.1&steps=5&threat=attribute", "distance must be given"),
        ("analyze?noise_multiplier=1&batch_size=10&dataset_size=5&epochs=1", "batch_size must be at most dataset_size"),
        ("calibrate?sample_rate=0.1&steps=5", "target"),
        ("calibrate?sample_rate=0.1&steps=5&target=tpr", "target must be a metric and its limit"),
        ("calibrate?steps=5&target=success<=0.6", "leave out exactly one"),
        ("epochs?noise_multiplier=1&sample_rate=0.1&steps=five", "steps"),
    ],
)
def test_bad_input_is_said(client: TestClient, path: str, words: str) -> None:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


NAMES = [*models.AskTarget.model_fields, "rest", "nonsense"]
ODD = st.one_of(
    st.floats().map(str),
    st.integers().map(str),
    st.text(max_size=12),
    st.sampled_from(["", "0", "1", "2", "0.5", "1e-300", "1e300", "attribute", "membership", "exact", "paper", "null", "١"]),
    st.sampled_from(["bayes_security>=0.9", "tpr<=0.1@fpr=0.01", "success<=0.6", "epsilon<=1@delta=0", "gdp_mu<=nan", "β*≥1"]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["analyze", "calibrate", "epochs", "tradeoff"]),
    query=st.lists(st.tuples(st.sampled_from(NAMES), ODD), max_size=6),
)
def test_nonsense_is_never_an_error_of_the_server(client: TestClient, path: str, query: list[tuple[str, str]]) -> None:
    _check(client.get(f"/api/{path}", params=query))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["analyze", "calibrate", "epochs", "tradeoff"]),
    noise=st.floats(0.01, 1e6),
    rate=st.floats(1e-12, 1.0),
    steps=st.integers(1, 10**9),
    threat=st.sampled_from(["membership", "membership-add-remove", "attribute"]),
    distance=st.floats(0.0, 2.0),
    method=st.sampled_from(["exact", "certified", "affinity", "paper"]),
    prior=st.floats(0.0, 1.0),
    fpr=st.floats(0.0, 1.0),
    target=st.sampled_from(["bayes_security>=0.9", "success<=0.9", "tpr<=0.5@fpr=0.01", "epsilon<=3@delta=1e-5"]),
)
def test_anything_allowed_is_answered_or_explained(client: TestClient, path: str, target: str, **asked: Any) -> None:
    query = {
        "noise_multiplier": asked["noise"],
        "sample_rate": asked["rate"],
        "steps": asked["steps"],
        **{name: asked[name] for name in ("threat", "method", "prior", "fpr")},
        "metric": ["bayes_security", "success", "tpr"],
    }
    if asked["threat"] == "attribute":
        query["distance"] = asked["distance"]
    if path == "calibrate":
        query["target"] = target
        del query["noise_multiplier"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "SECONDS", 0.5)
        patch.setattr(api, "MOVING", 0.5)
        _check(client.get(f"/api/{path}", params=query))


def _check(answer: Any) -> None:
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 422:
        assert len(answer.json()["detail"]) > 10
    else:
        json.loads(answer.text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


WRONG: list[tuple[str, Callable[[Any], Any], str]] = [
    ("analyze", lambda answer: answer["bayes_security"].pop("lower"), "bayes_security.lower: Field required"),
    (
        "analyze",
        lambda answer: answer["bayes_security"].update(lower="0.9"),
        "bayes_security.lower: Input should be a valid number",
    ),
    (
        "analyze",
        lambda answer: answer["advantage"].update(upper=float("inf")),
        "advantage.upper: Input should be a finite number",
    ),
    ("analyze", lambda answer: answer["tpr"][0].pop("fpr"), "tpr.0.fpr: Field required"),
    ("analyze", lambda answer: answer.update(secret=1), "secret: Extra inputs are not permitted"),
    ("analyze", lambda answer: answer["parameters"].update(steps=2040.5), "parameters.steps: Input should be a valid integer"),
    ("analyze", lambda answer: answer.update(warnings="none"), "warnings: Input should be a valid list"),
    ("epochs", lambda answer: answer.update(unit="hours"), "unit: Input should be 'epochs' or 'steps'"),
    ("epochs", lambda answer: answer["exact"][0].update(lower=None), "exact.0.lower: Input should be a valid number"),
    ("tradeoff", lambda answer: answer["curve"][0].pop("upper"), "curve.0.upper: Field required"),
]


@pytest.mark.parametrize(("path", "spoil", "words"), WRONG)
def test_a_wrong_answer_is_not_given(
    client: TestClient, path: str, spoil: Callable[[Any], Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Worker.ask

    def spoiled(self: Worker, *arguments: Any) -> Any:
        answer = ask(self, *arguments)
        spoil(answer)
        return answer

    assert client.get(f"/api/{path}", params=ADULT).status_code == 200
    monkeypatch.setattr(Worker, "ask", spoiled)
    answer = client.get(f"/api/{path}", params=ADULT)
    assert answer.status_code == 500
    assert f"response.{words}" in answer.json()["detail"]
    assert "this is a fault of betastar" in answer.json()["detail"]


def test_every_metric_of_the_vocabulary_is_described(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    told = client.get("/api/analyze", params=ADULT).json()
    monkeypatch.setitem(METRICS, "area", Metric("area", "the area", "area", "area<=0.1", at="fpr"))
    answer, calibrated = models.answer_models()
    bound = {"lower": 0.1, "estimate": 0.2, "upper": None}
    assert answer.model_validate({**told, "area": [{"fpr": 0.5, **bound}]})
    with pytest.raises(ValueError, match="valid list"):
        answer.model_validate({**told, "area": {"fpr": 0.5, **bound}})
    with pytest.raises(ValueError, match="found"):
        calibrated.model_validate({**told, "target": "area<=0.1"})


def test_documented_and_for_this_machine_only(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {"/api/analyze", "/api/calibrate", "/api/epochs", "/api/tradeoff"}
    assert "bayes_security" in described["components"]["schemas"]["Answer"]["properties"]
    assert client.get("/docs").status_code == 404
    assert client.get("/../pyproject.toml").status_code == 404
    assert client.post("/api/analyze").status_code == 405
    for name in ("", "style.css", "app.js", "charts.js", "state.js", "rounding.js", "words.js"):
        text = client.get(f"/{name}").text
        assert "//cdn" not in text
        assert "https://" not in text
    assert "default-src 'self'" in client.get("/").headers["content-security-policy"]
    assert len(client.get("/plotly.js").content) > 1_000_000


#: Headers as browsers send them; whether the page and the API answer.
ASKERS: dict[str, tuple[dict[str, str], bool, bool]] = {
    "a program": ({}, True, True),
    "the page": (
        {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty", "origin": HERE},
        True,
        True,
    ),
    "the page, as localhost": (
        {"host": "localhost:8765", "sec-fetch-site": "same-origin", "origin": "http://localhost:8765"},
        True,
        True,
    ),
    "an address typed in": ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, True, True),
    "a link": ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, True, False),
    "a script": ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}, False, False),
    "an image": ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, False, False),
    "a frame": ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, False, False),
    "a form": (
        {
            "sec-fetch-site": "cross-site",
            "sec-fetch-mode": "navigate",
            "sec-fetch-dest": "document",
            "origin": "https://other.example",
        },
        False,
        False,
    ),
    "another port": ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, False, False),
    "another port, an old browser": ({"origin": "http://127.0.0.1:9999"}, False, False),
    "another scheme": ({"origin": "https://127.0.0.1:8765"}, False, False),
    "another site, an old browser": ({"origin": "https://other.example"}, False, False),
    "a sandbox": ({"origin": "null"}, False, False),
    "a header that is made up": ({"sec-fetch-site": "anything"}, False, False),
}


@pytest.mark.parametrize("asker", ASKERS)
def test_other_sites_are_refused(client: TestClient, asker: str) -> None:
    headers, page, api = ASKERS[asker]
    for path, allowed in (("/", page), ("/api/analyze", api), ("/app.js", api)):
        answer = client.get(path, params=ADULT, headers=headers)
        assert answer.status_code == (200 if allowed else 403), (path, answer.text)
        if not allowed:
            assert "not other sites" in answer.json()["detail"]


@pytest.mark.parametrize(
    "host", ["testserver", "elsewhere.example", "127.0.0.1.elsewhere.example", "localhost.elsewhere.example:8765"]
)
def test_other_names_are_refused(client: TestClient, host: str) -> None:
    """A site whose name leads to this machine (DNS rebinding) is its own origin, and is known by its name only."""
    for path in ("/", "/api/analyze"):
        answer = client.get(
            path, params=ADULT, headers={"host": host, "sec-fetch-site": "same-origin", "origin": f"http://{host}"}
        )
        assert answer.status_code == 400
        assert "bayes_security" not in answer.text

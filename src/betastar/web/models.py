"""What the API is asked, and the form of what it answers. FastAPI checks both, and describes them in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from betastar.answers.settings import Setting
from betastar.rounding import plain
from betastar.vocabulary import KEYS, METRICS, OF_THREATS, PARAMETERS, RUN, SAMPLED, Metric, filled, told

Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Number = int | float


def _field(name: str, **limits: Any) -> Any:
    """A parameter of the vocabulary, with its default and its help."""
    word = PARAMETERS[name]
    default = list(word.default) if isinstance(word.default, tuple) else word.default
    return Field({"metric": [], "method": None}.get(name, default), description=filled(word.help), **limits)


class Ask(BaseModel):
    """A setting: noise, rate (or batch and records), steps (or epochs); who attacks; and which metrics are reported."""

    model_config = ConfigDict(extra="forbid")

    noise_multiplier: float | None = _field("noise_multiplier", ge=0.01, le=1e6)
    sample_rate: float | None = _field("sample_rate", ge=1e-12, le=1.0)
    batch_size: int | None = _field("batch_size", ge=1, le=10**9)
    dataset_size: int | None = _field("dataset_size", ge=1, le=10**12)
    steps: int | None = _field("steps", ge=1, le=10**9)
    epochs: float | None = _field("epochs", gt=0.0, le=1e6)
    sampling: str = _field("sampling")
    max_batch_size: int | None = _field("max_batch_size", ge=1, le=10**9)
    threat: str = _field("threat")
    distance: float | None = _field("distance", ge=0.0, le=2.0)
    records_per_person: int | None = _field("records_per_person", ge=1, le=10**6)
    sees: str = _field("sees")
    method: str | None = _field("method")
    tolerance: float = _field("tolerance", ge=1e-8, lt=1.0)
    prior: Rate = _field("prior")
    fpr: list[Rate] = _field("fpr", max_length=20)
    delta: list[Annotated[float, Field(ge=1e-30, lt=1.0)]] = _field("delta", max_length=20)
    metric: list[str] = _field("metric", max_length=20)

    def setting(self) -> Setting:
        given = self.model_dump(exclude={"fpr", "delta", "metric", "target", "rest", "advice"})
        metrics = tuple(dict.fromkeys(self.metric)) or told()
        return Setting(**given, fpr=tuple(self.fpr), delta=tuple(self.delta), metrics=metrics)


class AskAnswer(Ask):
    advice: bool = Field(False, description="Whether the answer has advice, which takes some more certified figures.")


class AskTarget(Ask):
    target: str = Field(max_length=200, examples=[METRICS["bayes_security"].example, METRICS["tpr"].example])


class AtRest(BaseModel):
    rest: bool = Field(False, description="No slider is moving: take the time to be finer and to certify, after other questions.")


class AskOfPage(Ask, AtRest):
    """What the page asks: a setting, and whether a slider moves."""


class AskAnswerOfPage(AskAnswer, AtRest):
    """The same, and whether the answer has advice."""


class AskTargetOfPage(AskTarget, AtRest):
    """The same, with a target."""


def limits(name: str) -> dict[str, float]:
    """What a parameter may be: ge or gt, le or lt, of the number or of each of several."""
    field = Ask.model_fields[name]
    inner = getattr(get_args(field.annotation)[0], "__metadata__", ()) if get_origin(field.annotation) is list else ()
    parts = [part for one in (*field.metadata, *inner) for part in (one.metadata if isinstance(one, FieldInfo) else [one])]
    return {key: getattr(one, key) for one in parts for key in ("ge", "gt", "le", "lt") if hasattr(one, key)}


def is_number(name: str) -> bool:
    return name in Ask.model_fields and bool(limits(name))


def allowed(name: str) -> str:
    """What a parameter may be, in words."""
    known = limits(name)
    low, high = (("ge", "of at least"), ("gt", "greater than")), (("le", "at most"), ("lt", "below"))
    ends = [f"{word} {_grouped(known[key])}" for side in (low, high) for key, word in side if key in known]
    return f"a {'whole ' if is_whole(name) else ''}number {' and '.join(ends)}"


def _grouped(limit: float) -> str:
    """A limit as people write it: 1,000,000."""
    return f"{int(limit):,}" if float(limit).is_integer() else plain(limit)


def is_whole(name: str) -> bool:
    return int in get_args(Ask.model_fields[name].annotation)


class Answered(BaseModel):
    """A part of an answer: no other keys, no other types, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _said(name: str, kind: object) -> tuple[object, Any]:
    """A key of the answers, with what it means."""
    return kind, Field(description=KEYS[name])


def _made(name: str, base: type[BaseModel], doc: str, **fields: Any) -> type[BaseModel]:
    model: type[BaseModel] = create_model(name, __base__=base, __doc__=doc, **fields)
    return model


Bound = _made(
    "Bound", Answered, "A number, bounded.", **{name: _said(name, float | None) for name in ("lower", "estimate", "upper")}
)
TruePositives = _made("TruePositives", Bound, "TPR at an FPR.", fpr=(float, ...))
Point = _made("Point", Bound, "β* after so many epochs or steps.", at=(float, ...))


class Relied(Answered):
    at: float
    lower: float


class Band(Answered):
    method: Literal["certified", "affinity"]
    points: list[Point]  # type: ignore[valid-type]


class OverEpochs(Answered):
    unit: Literal["epochs", "steps"]
    exact: list[Relied] = Field(description="empty where there was no time")
    band: Band | None
    paper: list[Point]  # type: ignore[valid-type]


class EpsilonUpper(Answered):
    delta: float
    upper: float | None


class Tradeoff(Answered):
    curve: list[TruePositives]  # type: ignore[valid-type]
    tpr: list[TruePositives]  # type: ignore[valid-type]
    epsilon: list[EpsilonUpper]


Change = _made(
    "Change",
    Answered,
    "One change that reaches a target.",
    parameter=_said("parameter", str),
    value=_said("value", Number),
    instead_of=_said("instead_of", Number),
    reached=_said("reached", float),
)
Advice = _made(
    "Advice",
    Answered,
    KEYS["advice"],
    target=(str, Field(description="What is to be reached.")),
    band=_said("band", str | None),
    sentence=_said("sentence", str),
    options=_said("options", list[Change]),  # type: ignore[valid-type]
)


class Problem(BaseModel):
    detail: str


def answer_models() -> tuple[type[BaseModel], type[BaseModel]]:
    """The answer of analyze, and that of calibrate: the metrics of the vocabulary, and what is said of them."""
    hints = get_type_hints(Setting)
    named = (*RUN, *SAMPLED, "threat", *OF_THREATS, "sees", "method", "tolerance", "prior")
    parameters = {
        name: (Number if name == "epochs" else hints[name], Field(None, description=filled(PARAMETERS[name].help)))
        for name in named
    }
    said = {
        "sentence": str,
        "certainty": str,
        "assumptions": list[str],
        "warnings": list[str],
        "parameters": _made("Parameters", Answered, KEYS["parameters"], **parameters),
        "python": str,
        "command": str,
    }
    metrics = {name: (_metric(METRICS[name]) | None, Field(None, description=METRICS[name].title)) for name in told()}
    weaker = _made("FinalModel", Answered, KEYS["final_model"], **metrics, sentence=_said("sentence", str))
    answer = _made(
        "Answer",
        Answered,
        "What the command line prints with --json. Metrics that were not asked for are left out.",
        **metrics,
        **{name: _said(name, kind) for name, kind in said.items()},
        advice=(Advice | None, Field(None, description=KEYS["advice"])),
        final_model=(weaker | None, Field(None, description=KEYS["final_model"])),
    )
    calibrated = _made(
        "Calibrated",
        answer,
        "The same, with the parameter that was left out.",
        target=(str, Field(description=PARAMETERS["target"].help)),
        found=_said("found", dict[str, Number]),
    )
    return answer, calibrated


def _metric(metric: Metric) -> Any:
    """A bound, with the number that it depends on; a list if a setting may have several such numbers."""
    at = {} if metric.at is None else {metric.at: (float, ...)}
    also = {name: _said(name, float | None) for name in metric.also}
    if not at and not also:
        return Bound
    model: Any = _made(metric.name, Bound, metric.title, **at, **also)
    return list[model] if metric.at and isinstance(PARAMETERS[metric.at].default, tuple) else model

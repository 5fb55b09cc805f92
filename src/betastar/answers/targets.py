"""What people ask for, as a word: "bayes_security>=0.95", "tpr<=0.05@fpr=0.01", "epsilon<=1@delta=1e-5"."""

from __future__ import annotations

import re
from dataclasses import dataclass

import betastar as bs
from betastar.answers.settings import choose
from betastar.rounding import plain
from betastar.validation import WrongValueError
from betastar.vocabulary import METRICS

PATTERN = re.compile(r"\s*(\w+)\s*(>=|<=|≥|≤)\s*([^@\s]+)\s*(?:@\s*(\w+)\s*=\s*(\S+)\s*)?")


@dataclass(frozen=True)
class Wish:
    """One metric, its limit, and what it depends on."""

    metric: str
    value: float
    condition: str | None
    given: float | None

    @property
    def target(self) -> bs.Target:
        return bs.Target(**self._arguments())

    def _arguments(self) -> dict[str, float]:
        more = {} if self.condition is None or self.given is None else {self.condition: self.given}
        return {self.metric: self.value, **more}

    def python(self) -> str:
        return f"bs.Target({', '.join(f'{name}={value!r}' for name, value in self._arguments().items())})"

    def reached(self, risk: bs.Risk) -> float:
        """The number to rely on, in the words of the wish: a target on ε is kept as one on δ."""
        if self.metric == "epsilon":
            return float(risk.epsilon(self.given).upper)
        return self.target.reached(risk)

    def __str__(self) -> str:
        metric = METRICS[self.metric]
        usual = self.given in (None, metric.usual)
        return f"{self.metric}{metric.sign}{plain(self.value)}" + ("" if usual else f"@{self.condition}={plain(self.given)}")


def parse(text: str, name: str = "target") -> Wish:
    match = PATTERN.fullmatch(text)
    if not match:
        raise _wrong(name, "must be a metric and its limit, as in {example}", text, example=METRICS["bayes_security"].example)
    word, sign, value, condition, given = match.groups()
    metric = METRICS[choose(name, word, METRICS)]
    if (sign in (">=", "≥")) != metric.protects:
        raise _wrong(name, "must limit what an attacker can do, as in {example}", text, example=metric.example)
    if condition not in (None, metric.at) or (condition is None and metric.at is not None and metric.usual is None):
        raise _wrong(name, "must say it as in {example}", text, example=metric.example)
    depends = _number(name, given, text) if given else metric.usual
    wish = Wish(metric.name, _number(name, value, text), metric.at, depends)
    try:
        _ = wish.target
    except (ValueError, TypeError) as problem:
        raise WrongValueError(name, "{argument} {text}: {problem}", {"text": repr(text), "problem": str(problem)}) from None
    return wish


def _number(name: str, word: str, text: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise _wrong(name, "must have a number where {word} stands", text, word=repr(word)) from None


def _wrong(name: str, allowed: str, text: str, **values: str) -> WrongValueError:
    return WrongValueError(name, f"{{argument}} {allowed}, got {{text}}.", {"text": repr(text), **values})

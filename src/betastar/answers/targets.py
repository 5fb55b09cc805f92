"""What people ask for, as a word: "bayes_security>=0.95", "tpr<=0.05@fpr=0.01", "epsilon<=1@delta=1e-5"."""

from __future__ import annotations

import re
from dataclasses import dataclass

import betastar as bs
from betastar.answers.settings import choose
from betastar.rounding import plain

#: Each metric, the side that is asked for, and an example that people can copy.
EXAMPLES = {
    "bayes_security": "bayes_security>=0.95",
    "advantage": "advantage<=0.05",
    "success": "success<=0.51 (or success<=0.75@prior=0.3)",
    "tpr": "tpr<=0.05@fpr=0.01",
    "epsilon": "epsilon<=1@delta=1e-5",
    "gdp_mu": "gdp_mu<=0.3",
    "reconstruction": "reconstruction<=0.1@prior=0.01",
}
CONDITIONS = {"success": "prior", "tpr": "fpr", "epsilon": "delta", "reconstruction": "prior"}
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
        sign = ">=" if self.metric == "bayes_security" else "<="
        usual = self.given is None or (self.metric, self.given) == ("success", 0.5)
        return f"{self.metric}{sign}{plain(self.value)}" + ("" if usual else f"@{self.condition}={plain(self.given)}")


def parse(text: str, name: str = "target") -> Wish:
    found = PATTERN.fullmatch(text)
    if not found:
        raise ValueError(f"{name} must be a metric and its limit, as in {EXAMPLES['bayes_security']}, got {text!r}.")
    metric, sign, value, condition, given = found.groups()
    choose(name, metric, EXAMPLES)
    if (sign in (">=", "≥")) != (metric == "bayes_security"):
        raise ValueError(f"{name} must limit what an attacker can do, as in {EXAMPLES[metric]}, got {text!r}.")
    wanted = CONDITIONS.get(metric)
    if condition not in (None, wanted) or (condition is None and wanted is not None and metric != "success"):
        raise ValueError(f"{name} must say it as in {EXAMPLES[metric]}, got {text!r}.")
    wish = Wish(metric, _number(name, value, text), wanted, _number(name, given or "0.5", text) if wanted else None)
    try:
        _ = wish.target
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{name} {text!r}: {problem}") from None
    return wish


def _number(name: str, word: str, text: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{name} must have a number where {word!r} stands, got {text!r}.") from None

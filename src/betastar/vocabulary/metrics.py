"""The metrics: numbers about a risk, how targets compare them, and how people are told them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from betastar.rounding import nearest, percent, plain, significant

#: Decimals of a percentage: so many, and more (up to the second number) where these hide the excess over guessing.
DECIMALS, MOST_DECIMALS = 2, 6
#: Significant digits of every other metric.
DIGITS = 4


@dataclass(frozen=True)
class Metric:
    """A number about a risk. `name` is the attribute of Risk, the argument of Target, the JSON key and the value of --metric."""

    name: str
    #: In a table, and where there is little room; {} stands for what it depends on.
    title: str
    short: str
    #: A target that people can copy.
    example: str
    #: What it depends on: the argument of the method of Risk, the JSON key, and the word after @ in a target.
    at: str | None = None
    #: What `at` is unless it is given.
    usual: float | None = None
    #: A large number is safe, so its lower end is the one to rely on; otherwise it is the upper end.
    protects: bool = False
    #: It is a probability that people are told as a percentage.
    share: bool = False
    #: It lies between 0 and 1.
    limited: bool = True
    #: Further numbers of its bound, which are keys of its JSON, too.
    also: tuple[str, ...] = ()
    #: What it is, in a sentence or two, where it stands alone.
    meaning: str = ""
    #: `analyze` and `sweep` report it; otherwise it is a target only.
    told: bool = True

    @property
    def sign(self) -> str:
        """How a target compares it."""
        return ">=" if self.protects else "<="

    @property
    def safe_end(self) -> str:
        """The end of its bound to rely on."""
        return "lower" if self.protects else "upper"

    def without_model(self, given: float | None = None) -> float:
        """What an attacker reaches who has no model."""
        if self.protects:
            return 1.0
        if given is None or self.at == "delta":
            return 0.0
        return max(given, 1.0 - given) if self.name == "success" else given

    def met(self, value: float, limit: float) -> bool:
        return value >= limit if self.protects else value <= limit

    def rounded(self, value: float | None, given: float | None = None, digits: int = DIGITS) -> str:
        """The number to rely on, rounded to the safe side. It is written like this wherever people see it."""
        if self.share and value is not None:
            return percent(value, decimals(value - self.without_model(given)))
        return significant(value, digits, upwards=not self.protects)

    def row(self, bound: Mapping[str, Any], given: float | None = None, short: bool = False) -> tuple[str, str, str, str]:
        """A row for people: its title, the number to rely on, the estimate, and what it is without a model.

        Parameters
        ----------
        bound : mapping
            The estimate and the end to rely on, by their names.
        given : float, optional
            What the metric depends on, or what its title names.
        short : bool
            Whether there is little room for the title.
        """
        title = (self.short if short else self.title).format(given and plain(given))
        at = given if self.at else None
        relied, idle = self.rounded(bound[self.safe_end], at), self.without_model(at)
        if not self.share:
            return title, relied, nearest(bound["estimate"]), plain(idle)
        near = f"{100 * bound['estimate']:.{decimals(bound[self.safe_end] - idle)}f} %"
        return title, relied, near, f"{100 * idle:.10g} %"


def decimals(excess: float) -> int:
    """Decimals of a percentage that show an excess over guessing."""
    number = DECIMALS
    while number < MOST_DECIMALS and 0.0 < 100.0 * excess < 10.0**-number:
        number += 1
    return number


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "bayes_security",
            "Bayes security β*",
            "β*",
            "bayes_security>=0.98",
            protects=True,
            meaning="1 minus the advantage of the best attacker. At 1 they may as well toss a coin, at 0 they always know.",
        ),
        Metric("advantage", "advantage", "advantage", "advantage<=0.05"),
        Metric(
            "success",
            "right guesses, prior {}",
            "right guesses",
            "success<=0.51 (or success<=0.75@prior=0.3)",
            at="prior",
            usual=0.5,
            share=True,
        ),
        Metric("tpr", "true positives at FPR {}", "TPR at FPR {}", "tpr<=0.05@fpr=0.01", at="fpr"),
        Metric("epsilon", "ε at δ {}", "ε at δ {}", "epsilon<=1@delta=1e-5", at="delta", limited=False),
        Metric(
            "gdp_mu",
            "Gaussian μ, fitted down to FPR {}",
            "μ down to FPR {}",
            "gdp_mu<=0.3",
            limited=False,
            also=("regret", "smallest_fpr"),
        ),
        Metric(
            "reconstruction",
            "reconstructed records, prior {}",
            "reconstruction",
            "reconstruction<=0.1@prior=0.01",
            at="prior",
            told=False,
        ),
    )
}


def told() -> tuple[str, ...]:
    """The metrics that `analyze` and `sweep` report."""
    return tuple(name for name, metric in METRICS.items() if metric.told)

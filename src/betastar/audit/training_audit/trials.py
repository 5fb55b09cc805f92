"""The result of an audit of real training: one audit for each of three attackers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from betastar.audit.leakage_estimate import Leakage
from betastar.audit.results import ALARM, Audit
from betastar.display import Display, Displayed

#: The attackers: one sees every update, one holds the final weights, one can only query the final model.
UPDATES, WEIGHTS, OUTPUTS = "updates", "weights", "outputs"
WHO = {UPDATES: "sees every update", WEIGHTS: "has the final weights", OUTPUTS: "asks the final model"}


@dataclass(frozen=True, repr=False)
class Trials(Displayed):
    """One audit for each attacker: on every update, on the final weights, on the answers of the final model.

    Attributes
    ----------
    challenge : str
        The record that the games are about.
    audits : dict of str to Audit
        By attacker: "updates", "weights" and "outputs".
    leakage : Leakage or None
        A nearest-neighbour estimate of what the final model's outputs tell, without a model of the attack.
    beyond : float or None
        The distance between the candidates' clipped gradients, where it was larger than that of the bound.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> updates = audit.mechanism(bs.DPSGD(noise_multiplier=1.0, sample_rate=0.05, steps=20), games=1000, seed=1)
    >>> trials = audit.Trials("a canary", {"updates": updates}, leakage=None)  # as `betastar.audit.training` returns it
    >>> trials["updates"].games, trials.violated
    (1000, False)
    """

    challenge: str
    audits: dict[str, Audit]
    leakage: Leakage | None
    beyond: float | None = None

    def __getitem__(self, place: str) -> Audit:
        return self.audits[place]

    @property
    def p_value(self) -> float:
        """The p-value of the strongest attacker, times the number of attackers: a union bound."""
        return min(1.0, len(self.audits) * min(audit.p_value for audit in self.audits.values()))

    @property
    def violated(self) -> bool:
        return self.p_value < ALARM

    @property
    def sentence(self) -> str:
        """The verdict for a person."""
        text = min(self.audits.values(), key=lambda audit: audit.p_value).told(self.p_value)
        if self.violated and self.beyond is not None:
            text += (
                f" But the bound is for a smaller distance than the challenge's gradients have, {self.beyond:.3g} clipping "
                "norms: unless gap clipping enforces it, it is this distance that is refuted."
            )
        return text

    @property
    def comparison(self) -> str:
        """What attackers of the final model reached, beside the heuristic for them; empty where it does not apply."""
        final = {place: audit for place, audit in self.audits.items() if audit.heuristic is not None}
        if not final:
            return ""
        heuristic = next(iter(final.values())).heuristic
        assert heuristic is not None
        reached = " and ".join(f"{audit.advantage.estimate:.3f} (who {WHO[place]})" for place, audit in final.items())
        exceeded = any(audit.advantage.lower > heuristic for audit in final.values())
        return (
            f"Attackers of the final model reached an advantage of {reached}. If all losses were linear, the worst record would "
            f"allow {heuristic:.3f}: a heuristic and no bound, which {'somebody' if exceeded else 'nobody'} exceeded here."
        )

    def _display(self, brief: bool) -> Display:
        from betastar.audit.audit_display import display

        shown = display(self.sentence, self.audits, brief)
        more = [f"Challenge: {self.challenge}.", *filter(None, [self.comparison])]
        if self.leakage is not None:
            more.append(f"Without a model of the attack: {self.leakage.sentence}")
        return replace(shown, lines=(*shown.lines, *more))

    def __repr__(self) -> str:
        parts = (f"{place}: {'violated' if audit.violated else 'no violation'}" for place, audit in self.audits.items())
        return f"Trials({self.challenge}, {', '.join(parts)}, p_value={self.p_value:.2g})"

    def as_dict(self) -> dict[str, Any]:
        """The object that is printed as JSON."""
        return {
            "kind": "training",
            "challenge": self.challenge,
            "sentence": self.sentence,
            "p_value": self.p_value,
            "violated": self.violated,
            "beyond": self.beyond,
            "comparison": self.comparison,
            "audits": {place: audit.as_dict() for place, audit in self.audits.items()},
            "leakage": None if self.leakage is None else self.leakage.as_dict(),
        }

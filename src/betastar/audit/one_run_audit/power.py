"""How often an audit in one run finds a fault, and how often it accuses a correct run: many audits of the mechanism."""

from __future__ import annotations

import numpy as np

from betastar import validation
from betastar.arrays import Real
from betastar.audit.one_run_audit.claimed_curve import ClaimedCurve
from betastar.audit.one_run_audit.curve_p_value import curve_p_value
from betastar.audit.one_run_audit.guesses import planned_guesses, right_guesses
from betastar.audit.one_run_audit.mechanism_games import MechanismCanaries
from betastar.dpsgd import DPSGD
from betastar.threats import Membership, Threat


def one_run_p_values(
    run: DPSGD,
    canaries: int,
    audits: int = 100,
    seed: int = 0,
    actual: DPSGD | None = None,
    threat: Threat | None = None,
    values: int | None = None,
) -> Real:
    """The p-values of many audits in one run of the mechanism.

    Parameters
    ----------
    run : DPSGD
        What is claimed.
    canaries : int
        The number of canaries of each audit.
    audits : int
        The number of audits.
    seed : int
        The seed of all audits together.
    actual : DPSGD, optional
        What was really run, if that is not what is claimed.
    threat : Threat, optional
        What a canary changes; adding or removing a record by default.
    values : int, optional
        The number of values of a canary, as for `one_run_mechanism`.

    Returns
    -------
    array of float
        A p-value for each audit.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar import audit
    >>> claimed, real = bs.DPSGD(2.0, 1.0, 1), bs.DPSGD(0.5, 1.0, 1)
    >>> float((audit.one_run_p_values(claimed, canaries=1000, audits=10, actual=real) < audit.ALARM).mean())
    1.0
    """
    audits = validation.one_whole("audits", audits)
    threat = Membership("add-remove") if threat is None else threat
    played = MechanismCanaries(run, threat, canaries, values, actual)
    claim, choices = ClaimedCurve.of_run(run, threat), 2 if values is None else values
    guesses = planned_guesses(claim, played.number, choices)
    rights = []
    for stream in np.random.SeedSequence(validation.seed(seed)).spawn(audits):
        truth, scores = played.play(stream)
        rights.append(right_guesses(scores, truth, guesses))
    known = {right: curve_p_value(right, guesses, played.number, claim, choices) for right in set(rights)}
    return np.array([known[right] for right in rights])

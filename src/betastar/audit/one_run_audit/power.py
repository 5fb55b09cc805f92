"""How often an audit in one run finds a fault, and how often it accuses a correct run: many audits of the mechanism."""

from __future__ import annotations

import numpy as np

from betastar import validation
from betastar.arrays import Real
from betastar.audit.mechanism_audit.games import same_steps
from betastar.audit.mechanism_audit.worst_pairs import attacks, play, strongest
from betastar.audit.one_run_audit.claimed_curve import ClaimedCurve
from betastar.audit.one_run_audit.curve_p_value import curve_p_value
from betastar.audit.one_run_audit.guesses import FEWEST, planned_guesses, right_guesses
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import Membership


def one_run_p_values(run: DPSGD, canaries: int, audits: int = 100, seed: int = 0, actual: DPSGD | None = None) -> Real:
    """The p-values of many audits in one run of the mechanism, for adding or removing a record.

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
    number, audits = validation.one_whole("canaries", canaries, FEWEST), validation.one_whole("audits", audits)
    threat = Membership("add-remove")
    claim = ClaimedCurve.of_run(run, threat)
    guesses = planned_guesses(claim, number)
    views = attacks(run, threat)
    which, pair = strongest(views, 0.5)
    believed, real = views[which].every, attacks(same_steps(run, actual), threat)[which].every
    rights = []
    for stream in np.random.SeedSequence(validation.seed(seed)).spawn(audits):
        truth, scores, _ = play(believed, real, pair, 0.5, number, stream)
        rights.append(right_guesses(scores, truth, guesses))
    known = {right: curve_p_value(right, guesses, number, claim) for right in set(rights)}
    return np.array([known[right] for right in rights])

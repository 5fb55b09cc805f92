"""An attacker who guesses a secret from the rest of a record, as public records teach it, and may see the training as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from betastar import Risk
from betastar.runs import TableEncoder
from studies.trainings import Json
from studies.voters.data import Voters

if TYPE_CHECKING:
    from pandas import DataFrame

#: Probabilities are rounded up to a multiple of 1 / STEPS.
STEPS = 200


def of_rest(study: Voters, secret: str, risk: Risk) -> Json:
    """How often such an attacker is right about test records, without and with the training.

    A logistic regression of the public records gives each record its probabilities of the values. The training raises the chance
    of a right guess to that of the trade-off curve at the largest of them, at most.

    Parameters
    ----------
    study : Voters
        A study whose secret is one column.
    secret : str
        The column of the secret.
    risk : Risk
        The risk of attribute inference.

    Returns
    -------
    Json
        `hits`: the share of records whose most probable value is the right one; `without`: the share that the attacker
        themselves expects; `with`: the share that they expect at most after the training.
    """
    from sklearn.linear_model import LogisticRegression

    encoder, public, private = study.encoder, study.public_table, study.raw
    model = LogisticRegression(max_iter=1000).fit(_rest(encoder, public, secret), public[secret].to_numpy())
    probabilities = model.predict_proba(_rest(encoder, private, secret))
    hits = model.classes_[probabilities.argmax(axis=1)] == private[secret].to_numpy()
    surest = probabilities.max(axis=1)
    levels, which = np.unique(np.minimum(np.ceil(surest * STEPS), STEPS), return_inverse=True)
    others = study.secret.count - 1  # each has the same probability: only the largest one matters
    reached = [float(risk.success([p, *[(1.0 - p) / others] * others]).upper) for p in levels / STEPS]
    return {"hits": float(hits.mean()), "without": float(surest.mean()), "with": float(np.mean(np.array(reached)[which]))}


def _rest(encoder: TableEncoder, table: DataFrame, secret: str) -> NDArray[np.float64]:
    """All else that is known of each record: the other inputs of the model, and the label unless it is the secret."""
    inputs = [column.encode(table[column.name]) for column in encoder.columns if column.name != secret]
    if encoder.label != secret:
        inputs.append((table[encoder.label] == encoder.classes[0]).to_numpy(dtype=float)[:, None])
    return np.hstack(inputs)

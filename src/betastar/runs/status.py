"""What is known of a run when it is complete: the content of status.json."""

from __future__ import annotations

from dataclasses import dataclass, field

from betastar.runs.json_object import JsonObject
from betastar.runs.reading import Json

#: Fields that only some runs have; where such a field is None, the file does not have it.
OPTIONAL = ("secret", "values", "label", "gaps", "proof", "person", "records_per_person", "max_batch_size", "shares", "concerned")


@dataclass(frozen=True, kw_only=True)
class Status(JsonObject):
    """What is known of a run when it is complete.

    Attributes
    ----------
    batch_size, noise_multiplier, max_grad_norm, learning_rate, hidden
        The parameters of the training, as for `Recipe`.
    epochs : int
        The number of epochs that were trained.
    records : int
        The number of training records.
    sample_rate : float
        The probability of each record at each step.
    study : str
        The title of the study.
    finished : bool
        True, because the file is written last.
    stopped : str or None
        Why a budget ended the training before its last epoch.
    versions : dict of str to str
        The packages that the run was made with.
    secret : str or None
        The name of the secret, where a monitor watched it or gap clipping protected it.
    values : int or None
        The number of values of the secret.
    label : str or None
        What the monitor's figures are: an estimate, or a statement after the fact.
    gaps : dict of str to float, or None
        The gap that was enforced for each secret.
    proof : str or None
        What a budget or gap clipping promises. A report computes it again, and does not repeat this sentence.
    restated : tuple of str
        The columns from which the secret can be read off.
    told : tuple of str
        What was done to the columns of a table, in sentences.
    person : str or None
        The column that says whose record it is.
    records_per_person : int or None
        The number of training records of the person who has most.
    sampling : str
        How batches were drawn, as in `betastar.DPSGD`.
    max_batch_size : int or None
        Of a larger batch, so many records were kept at random.
    shares : dict of str to float, or None
        Of the training records that the secret is about, the share that holds each value. It depends on the data.
    concerned : int or None
        The number of training records that the secret is about; None if these are all of them. It depends on the data.
    """

    batch_size: int
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    epochs: int
    hidden: tuple[int, ...]
    records: int
    sample_rate: float
    versions: dict[str, str] = field(default_factory=dict)
    finished: bool
    stopped: str | None = None
    study: str
    secret: str | None = None
    values: int | None = None
    label: str | None = None
    gaps: dict[str, float] | None = None
    proof: str | None = None
    restated: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    person: str | None = None
    records_per_person: int | None = None
    sampling: str = "poisson"
    max_batch_size: int | None = None
    shares: dict[str, float] | None = None
    concerned: int | None = None

    def to_json(self) -> Json:
        """The object that status.json holds."""
        return {name: value for name, value in super().to_json().items() if value is not None or name not in OPTIONAL}

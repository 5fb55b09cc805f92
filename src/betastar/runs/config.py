"""What a run is asked for: the study, its secret, and the parameters of training. It is the content of config.json.

Reading a run folder needs no torch: studies are loaded when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from betastar import validation
from betastar.calibrate import Target, calibrate
from betastar.runs import seeds
from betastar.runs.reading import JsonObject, StudyError
from betastar.threats import Membership
from betastar.tuning import Trials

if TYPE_CHECKING:
    from betastar.runs.study import Study


@dataclass(frozen=True)
class Recipe:
    """Parameters of a private training."""

    batch_size: int
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    epochs: int = 30
    hidden: tuple[int, ...] = (128,)


AnyStudy = TypeVar("AnyStudy", bound="Study")
#: Parameters of training. A study has its own, and a configuration may choose others.
PARAMETERS = tuple(field.name for field in fields(Recipe))
#: Fields that belong to a table of somebody's own.
OWN_TABLE = ("label", "person", "max_records_per_person", "label_range")
#: Fields of which a configuration may have one at most.
ANY_TWO_OF = (("gap", "attribute_target"), ("target", "noise_multiplier"))
#: How `betastar train` can draw batches.
SAMPLINGS = ("poisson", "fixed-size", "balls-in-bins")
#: The secret of Adult, unless another one is chosen.
ADULTS_SECRET = "age"


def secret_name(sensitive: str, along: Sequence[str] = ()) -> str:
    """The name of the secret that a sensitive column is, with the columns that change along."""
    return f"{sensitive} with {' and '.join(along)}" if along else sensitive


@dataclass(frozen=True)
class Config(JsonObject):
    """Everything that a run depends on.

    Attributes
    ----------
    study : str
        "adult", the path of a table, or the name of a study that `train` is given.
    label, sensitive : str, optional
        The columns of the label and of the secret. Adult has a label of its own.
    label_range : (float, float), optional
        Own table: the label is a number in this range, which is known without the records.
    along : tuple of str
        Columns that restate the secret and change together with it.
    values : tuple of str, optional
        Own table: the values of the secret, or one range such as "17:90"; by default all that occur.
    drop : tuple of str
        Columns that are left out.
    person, max_records_per_person : optional
        Own table: the column that says whose record it is, and how many records of a person are trained on at most.
    epochs, batch_size, noise_multiplier, max_grad_norm, learning_rate, hidden : optional
        The parameters of training, as for `Recipe`; the study's by default.
    target : str, optional
        What must hold against membership inference, such as "bayes_security>=0.95": the noise is calibrated to it.
    seed : int, optional
        Drawn by default.
    scope, every, diameter, approximate, ledger
        How the monitor measures, as for `AttributeMonitor`. `every` is by default 1, or more where measuring would take long.
    monitor : bool
        Whether a monitor watches the training.
    gap, attribute_target : optional
        Gap clipping: the largest gap, or what the gap must reach against attribute inference, such as "bayes_security>=0.99".
    sampling : str
        How batches are drawn, as in `betastar.DPSGD`.
    times_per_epoch : int
        With balls in bins: in how many batches of an epoch each record is.
    max_batch_size : int, optional
        With Poisson sampling: larger batches are cut down to this many records, at random.
    trials : int, optional
        How many models are trained, of which the best one is kept.
    search : tuple of str
        What parameters of these models are drawn from, such as "lr=1e-4:1e-2log".
    """

    study: str = "adult"
    label: str | None = None
    sensitive: str | None = None
    along: tuple[str, ...] = ()
    values: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    epochs: int | None = None
    batch_size: int | None = None
    noise_multiplier: float | None = None
    max_grad_norm: float | None = None
    learning_rate: float | None = None
    hidden: tuple[int, ...] | None = None
    target: str | None = None
    seed: int | None = None
    scope: str = "batch"
    every: int | None = None
    diameter: str = "exact"
    approximate: bool = False
    ledger: bool = True
    monitor: bool = True
    gap: float | None = None
    attribute_target: str | None = None
    person: str | None = None
    max_records_per_person: int | None = None
    sampling: str = "poisson"
    max_batch_size: int | None = None
    label_range: tuple[float, float] | None = None
    times_per_epoch: int = 1
    trials: int | None = None
    search: tuple[str, ...] = ()

    @property
    def law(self) -> Trials | None:
        """How many models are trained; None if it is one run."""
        return None if self.trials is None else Trials.fixed(self.trials)

    @property
    def clips_gaps(self) -> bool:
        """Whether the training clips gaps."""
        return self.gap is not None or self.attribute_target is not None

    @property
    def plain_poisson(self) -> bool:
        """Whether batches are drawn by Poisson sampling and not cut off."""
        return self.sampling == "poisson" and self.max_batch_size is None

    def chosen_seed(self) -> int:
        """The seed, or a new one that is drawn."""
        return seeds.draw() if self.seed is None else validation.seed(self.seed)

    def data_seed(self) -> int:
        """The seed of the split. The noise cannot be computed from it, unless the seed is small."""
        return seeds.derive(self.chosen_seed(), "split")

    def load(self) -> Study:
        """The study, with this configuration's parameters; raises StudyError for what cannot be run."""
        seed = self.data_seed()
        self._check()
        return self.applied_to(self._study(seed))

    def applied_to(self, study: AnyStudy) -> AnyStudy:
        """A study with this configuration's parameters; raises StudyError for what cannot be run."""
        self._check()
        chosen = {name: getattr(self, name) for name in PARAMETERS if getattr(self, name) is not None}
        recipe = replace(study.recipe, **chosen)
        if self.target is not None:
            recipe = replace(recipe, noise_multiplier=self._calibrated(recipe, study))
        return replace(study, recipe=recipe)

    def _calibrated(self, recipe: Recipe, study: Study) -> float:
        """The least noise that meets the target, for a person where a column says whose record it is."""
        if recipe.batch_size > len(study.train):
            raise StudyError(f"batch_size must be at most the {len(study.train)} training records, got {recipe.batch_size}.")
        run = calibrate(
            Target.parse(str(self.target)),
            batch_size=recipe.batch_size,
            dataset_size=len(study.train),
            epochs=recipe.epochs,
            opacus=False if self.sampling == "poisson" else None,
            sampling=self.sampling,
            max_batch_size=self.max_batch_size,
            times_per_epoch=self.times_per_epoch,
            trials=self.law,
            threat=Membership(records=1 if study.people is None else study.people.largest),
            method="certified",
        )
        return run.noise_multiplier

    def _check(self) -> None:
        validation.choice("scope", self.scope, ("batch", "dataset"))
        validation.choice("diameter", self.diameter, ("exact", "centroid"))
        if self.sampling == "shuffled":
            raise StudyError(
                "sampling 'shuffled' is not for training: little is proved of it. Use 'balls-in-bins', which is as simple."
            )
        validation.choice("sampling", self.sampling, SAMPLINGS)
        if self.max_batch_size is not None and self.sampling != "poisson":
            raise StudyError(f"max_batch_size belongs to sampling 'poisson', and to it only; got sampling {self.sampling!r}.")
        if validation.one_whole("times_per_epoch", self.times_per_epoch) > 1 and self.sampling != "balls-in-bins":
            raise StudyError(
                f"times_per_epoch belongs to sampling 'balls-in-bins', and to it only; got sampling {self.sampling!r}."
            )
        if self.gap is not None:
            validation.numbers("gap", self.gap, "between 0 and 2 (units of the clipping norm)", low=0.0, high=2.0)
        if self.target is not None:
            Target.parse(self.target)
        if self.attribute_target is not None:
            Target.parse(self.attribute_target, "attribute_target")
        for pair in ANY_TWO_OF:
            given = [name for name in pair if getattr(self, name) is not None]
            if len(given) > 1:
                raise StudyError(f"{given[0]} and {given[1]} are two ways to the same end: choose one.")

    def _study(self, seed: int) -> Study:
        from betastar.runs.adult import adult
        from betastar.runs.tables import own

        own_only = [name for name in OWN_TABLE if getattr(self, name) is not None and getattr(self, name) != ()]
        if own_only and self.study == "adult":
            raise StudyError(f"--{own_only[0].replace('_', '-')} is for a table of your own; {self.study} is not one.")
        if self.study == "adult":
            return adult(seed, self.sensitive or ADULTS_SECRET, self.along, self.drop)
        if self.label is None or self.sensitive is None:
            raise StudyError(
                f"{self.study} is a table of your own: name the column of the label and the sensitive one (--label, --sensitive)."
            )
        study = own(
            self.study,
            self.label,
            self.sensitive,
            list(self.values) if self.values else None,
            list(self.drop),
            seed,
            self.along,
            self.person,
            self.max_records_per_person,
            self.label_range,
        )
        scale = study.label_scale
        if self.clips_gaps and self.label == self.sensitive and scale is not None and not scale.declared:
            raise StudyError(
                f"a proof about the label {self.label!r} needs --label-range: without it the mean and the deviation of the "
                "label, which were computed without noise, would tell about it beside the proof."
            )
        return study

"""What a run is asked for: the study, its secret, and the parameters of training."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from betastar import validation
from betastar.datasets import seeds
from betastar.datasets.adult import adult
from betastar.datasets.purchase import RECORDS, purchase
from betastar.datasets.study import Study, StudyError
from betastar.datasets.table import own


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on. None: the study's own value; a seed is drawn."""

    study: str = "adult"
    target: str | None = None
    sensitive: str | None = None
    along: tuple[str, ...] = ()
    values: tuple[str, ...] | None = None
    between: tuple[float, float] | None = None
    drop: tuple[str, ...] = ()
    public: str | None = None
    data: str | None = None
    checksum: str | None = None
    records: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    noise_multiplier: float | None = None
    max_grad_norm: float | None = None
    learning_rate: float | None = None
    hidden: tuple[int, ...] | None = None
    seed: int | None = None
    scope: str = "batch"
    every: int = 1
    diameter: str = "exact"
    approximate: bool = False
    ledger: bool = True
    monitor: bool = True
    target_beta: float | None = None
    gap: float | None = None
    target_attribute_beta: float | None = None

    def chosen_seed(self) -> int:
        """The seed, or one that is drawn."""
        return seeds.draw() if self.seed is None else validation.seed(self.seed)

    def data_seed(self) -> int:
        """Of the split, and of synthetic records: the noise cannot be computed from it, unless the seed is small."""
        return seeds.derive(self.chosen_seed(), "split")

    def described(self) -> dict[str, Any]:
        """As config.json has it."""
        return dict(json.loads(json.dumps(asdict(self))))

    def load(self) -> Study:
        """The study, with this configuration's parameters; complains of what cannot be run."""
        seed = self.data_seed()
        validation.choice("scope", self.scope, ("batch", "dataset"))
        validation.choice("diameter", self.diameter, ("exact", "ball", "centroid"))
        if self.target_beta is not None:
            validation.probability("target_beta", self.target_beta, strict=True)
        if self.gap is not None:
            validation.numbers("gap", self.gap, "between 0 and 2 (units of the clipping norm)", low=0.0, high=2.0)
        if self.target_attribute_beta is not None:
            validation.probability("target_attribute_beta", self.target_attribute_beta, strict=True)
        known = {"gap": self.gap, "target_attribute_beta": self.target_attribute_beta, "target_beta": self.target_beta}
        if len(given := [name for name, value in known.items() if value is not None]) > 1:
            raise StudyError(f"{given[0]} and {given[1]} are two ways to the same end: choose one.")
        if self.study == "adult":
            study = adult(seed, self.sensitive or "age", self.along, self.drop)
        elif self.study == "purchase":
            if self.sensitive is not None:
                raise StudyError(
                    f"sensitive cannot be chosen for purchase, whose secret is its first item; got {self.sensitive!r}."
                )
            study = purchase(self.data, seed, self.records or RECORDS, self.checksum, self.drop)
        elif self.target is None or self.sensitive is None:
            raise StudyError(f"{self.study} is a table of your own: say which column is the target and which is sensitive.")
        else:
            study = own(
                self.study,
                self.target,
                self.sensitive,
                list(self.values) if self.values else None,
                self.between,
                list(self.drop),
                seed,
                self.along,
                self.public,
            )
        names = ("epochs", "batch_size", "noise_multiplier", "max_grad_norm", "learning_rate", "hidden")
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(study, recipe=replace(study.recipe, **chosen))

    @property
    def clips_gaps(self) -> bool:
        return self.gap is not None or self.target_attribute_beta is not None

"""`betastar train`: one training loop, and one folder for each run.

In reading order: `config` (what is asked for), `study` with `adult`, `tables` and `encoder` (records to train on), `loop` (a run
from its start to its end), `folder` with `reading` (its files), `model`, `prediction` and `quality` (the trained model), and
`audited` (a study as an audit plays it). The names below are public: with them a study of one's own is trained as `betastar
train` trains Adult. They are loaded when they are used, because most need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from betastar.runs.audited import Attacked, attacked
    from betastar.runs.config import Config, Recipe
    from betastar.runs.encoder import Column, TableEncoder
    from betastar.runs.folder import RunFolder
    from betastar.runs.loop import Training, criterion_of, network, opened, quietly, train, train_seeds
    from betastar.runs.model import load, outputs
    from betastar.runs.prediction import predict
    from betastar.runs.reading import StudyError
    from betastar.runs.study import Persons, Study, split, tensors
    from betastar.training.secrets.tables import restated

#: The public names of each module.
_NAMES = {
    "betastar.runs.audited": ("Attacked", "attacked"),
    "betastar.runs.config": ("Config", "Recipe"),
    "betastar.runs.encoder": ("Column", "TableEncoder"),
    "betastar.runs.folder": ("RunFolder",),
    "betastar.runs.loop": ("Training", "criterion_of", "network", "opened", "quietly", "train", "train_seeds"),
    "betastar.runs.model": ("load", "outputs"),
    "betastar.runs.prediction": ("predict",),
    "betastar.runs.reading": ("StudyError",),
    "betastar.runs.study": ("Persons", "Study", "split", "tensors"),
    "betastar.training.secrets.tables": ("restated",),
}

__all__ = [
    "Attacked",
    "Column",
    "Config",
    "Persons",
    "Recipe",
    "RunFolder",
    "Study",
    "StudyError",
    "TableEncoder",
    "Training",
    "attacked",
    "criterion_of",
    "load",
    "network",
    "opened",
    "outputs",
    "predict",
    "quietly",
    "restated",
    "split",
    "tensors",
    "train",
    "train_seeds",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""`betastar train`: one training loop, and one folder for each run.

In reading order: `config` (what is asked for), `private_training` (the loop), `loop` (a run from its start to its end),
`folder` (the files of a run) with `status`, `checkpoint`, `json_object` and `reading`. The names below are public: with them a
study of one's own is trained as `betastar train` trains Adult. They are loaded when they are used, because most need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from betastar.datasets.errors import StudyError
    from betastar.datasets.persons import Persons
    from betastar.datasets.recipe import Recipe
    from betastar.datasets.study import Study, split, tensors
    from betastar.datasets.table_encoder import Column, TableEncoder
    from betastar.runs.audited import Attacked, attacked
    from betastar.runs.config import Config
    from betastar.runs.folder import RunFolder
    from betastar.runs.loop import Training, opened, quietly, train, train_seeds
    from betastar.runs.prediction import predict
    from betastar.runs.private_training import criterion_of, network
    from betastar.runs.trained_model import load, outputs
    from betastar.training.secrets.tables import restated

#: The module of each public name.
_MODULES = {
    "Attacked": "betastar.runs.audited",
    "Column": "betastar.datasets.table_encoder",
    "Config": "betastar.runs.config",
    "Persons": "betastar.datasets.persons",
    "Recipe": "betastar.datasets.recipe",
    "RunFolder": "betastar.runs.folder",
    "Study": "betastar.datasets.study",
    "StudyError": "betastar.datasets.errors",
    "TableEncoder": "betastar.datasets.table_encoder",
    "Training": "betastar.runs.loop",
    "attacked": "betastar.runs.audited",
    "criterion_of": "betastar.runs.private_training",
    "load": "betastar.runs.trained_model",
    "network": "betastar.runs.private_training",
    "opened": "betastar.runs.loop",
    "outputs": "betastar.runs.trained_model",
    "predict": "betastar.runs.prediction",
    "quietly": "betastar.runs.loop",
    "restated": "betastar.training.secrets.tables",
    "split": "betastar.datasets.study",
    "tensors": "betastar.datasets.study",
    "train": "betastar.runs.loop",
    "train_seeds": "betastar.runs.loop",
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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)

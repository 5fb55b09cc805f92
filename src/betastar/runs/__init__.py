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

#: The module of each public name.
_MODULES = {
    "Attacked": "betastar.runs.audited",
    "Column": "betastar.runs.encoder",
    "Config": "betastar.runs.config",
    "Persons": "betastar.runs.study",
    "Recipe": "betastar.runs.config",
    "RunFolder": "betastar.runs.folder",
    "Study": "betastar.runs.study",
    "StudyError": "betastar.runs.reading",
    "TableEncoder": "betastar.runs.encoder",
    "Training": "betastar.runs.loop",
    "attacked": "betastar.runs.audited",
    "criterion_of": "betastar.runs.loop",
    "load": "betastar.runs.model",
    "network": "betastar.runs.loop",
    "opened": "betastar.runs.loop",
    "outputs": "betastar.runs.model",
    "predict": "betastar.runs.prediction",
    "quietly": "betastar.runs.loop",
    "restated": "betastar.training.secrets.tables",
    "split": "betastar.runs.study",
    "tensors": "betastar.runs.study",
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

"""The model of a complete run, to be used: its weights (model.safetensors) and the encoder of its records (encoder.json)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from betastar.datasets.table_encoder import TableEncoder
from betastar.runs.folder import MODEL, RunFolder
from betastar.runs.layers import fully_connected
from betastar.runs.reading import FolderError

if TYPE_CHECKING:
    from pandas import DataFrame

#: The column of the class, or of the number, that is predicted.
PREDICTION = "prediction"
#: So many records of a table, and so many texts, are predicted at a time.
AT_A_TIME, TEXTS_AT_A_TIME = 8192, 256


@torch.no_grad()
def outputs(network: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a network, some records at a time: a table of numbers, or tokens of texts."""
    training = network.training
    network.eval()
    each = torch.cat([network(part) for part in x.split(AT_A_TIME if x.is_floating_point() else TEXTS_AT_A_TIME)])
    network.train(training)
    return each


class TrainedModel(NamedTuple):
    """What a run has trained: `encoder, network = load(path)`.

    Attributes
    ----------
    encoder : TableEncoder
        What makes the records of a table into inputs.
    network : Module
        The model: inputs to a number for each class, the largest of which is the prediction; or to one number, of which
        `encoder.label_scale.labels` makes the prediction.
    """

    encoder: TableEncoder
    network: nn.Module

    def predict(self, frame: DataFrame) -> DataFrame:
        """Predict the label of each record of a table.

        Parameters
        ----------
        frame : DataFrame
            The table, with the columns that the model was trained with.

        Returns
        -------
        DataFrame
            For each record the class that is predicted (`prediction`) and the model's `probability` of it; of a label that is
            a number, the number.

        Raises
        ------
        StudyError
            If a column is missing or unknown, or holds a value that the model was not trained with.
        """
        import pandas as pd

        numbers, scale = outputs(self.network, self.encoder.tensor(frame)), self.encoder.label_scale
        if scale is not None:
            return pd.DataFrame({PREDICTION: scale.labels(numbers.flatten())}, index=frame.index)
        probabilities, chosen = numbers.softmax(dim=1).amax(dim=1), numbers.argmax(dim=1)
        classes = [self.encoder.classes[i] for i in chosen.tolist()]
        return pd.DataFrame({PREDICTION: classes, "probability": probabilities.tolist()}, index=frame.index)


def load(path: str | os.PathLike[str]) -> TrainedModel:
    """Load the model of a complete run, and the encoder of its records. Neither runs any code from the folder.

    Parameters
    ----------
    path : path
        The folder of the run, or another one with the files model.safetensors and encoder.json.

    Returns
    -------
    TrainedModel
        A pair: the encoder and the network.

    Raises
    ------
    StudyError
        If there is no complete run, or its files are damaged.
    """
    folder = RunFolder(path)
    if folder.begun or not (folder / MODEL).exists():
        _ = folder.status
    encoder = folder.encoder
    return TrainedModel(encoder, _fully_connected(folder.weights, encoder, folder))


def _fully_connected(weights: dict[str, Any], encoder: TableEncoder, folder: RunFolder) -> nn.Module:
    """The network with these weights, which must be those of linear layers that fit the encoder."""
    shapes = [tuple(weights[name].shape) for name in sorted(weights, key=_place) if name.endswith(".weight")]
    sizes = [encoder.width, *(shape[0] for shape in shapes)]
    problem = ""
    if not shapes or len(shapes[-1]) != 2 or sizes[-1] != encoder.outputs:
        wanted = f"for each of the {encoder.outputs} classes" if encoder.label_scale is None else "that is one number"
        problem = f"it has no output {wanted}"
    else:
        network = fully_connected(sizes)
        try:
            network.load_state_dict(weights)
            return network.eval()
        except RuntimeError as error:
            problem = str(error).splitlines()[-1].strip()
    raise FolderError(f"{folder / MODEL} is not the model that the encoder of the run belongs to: {problem}.")


def _place(name: str) -> tuple[int, str]:
    number = name.split(".")[0]
    return (int(number) if number.isdecimal() else -1), name

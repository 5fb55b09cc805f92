"""The model of a run: its layers, its weights as bytes and back, and the trained model that predicts.

Reading weights or states that another person made runs no code of theirs.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from betastar.runs.encoder import TableEncoder
from betastar.runs.folder import MODEL, RunFolder
from betastar.runs.reading import FolderError

if TYPE_CHECKING:
    from pandas import DataFrame


def fully_connected(sizes: list[int]) -> nn.Sequential:
    """Linear layers of these sizes with tanh between them, as in the paper."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


# States and weights as bytes

#: An array of NumPy is kept as a tensor under this key: torch.load reads tensors and plain Python only.
ARRAY = "array of NumPy"


def pack(state: dict[str, Any]) -> bytes:
    """The content of a file that holds this state."""
    buffer = io.BytesIO()
    torch.save(_without_arrays(state), buffer)
    return buffer.getvalue()


def unpack(path: Path) -> dict[str, Any]:
    """The state in a file; raises FolderError for a file that `pack` did not make."""
    try:
        return dict(_with_arrays(torch.load(io.BytesIO(path.read_bytes()), weights_only=True)))
    except OSError:
        raise
    except Exception as problem:  # of pickle, zipfile or torch
        first = (str(problem) or type(problem).__name__).splitlines()[0]
        raise FolderError(f"{path} is damaged or not of betastar train: {first}") from None


def pack_weights(weights: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file that holds these weights and nothing else."""
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous() for name, tensor in weights.items()}, metadata={"format": "pt"})


def unpack_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a safetensors file; raises FolderError for another file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except (SafetensorError, KeyError, ValueError, RuntimeError) as problem:
        raise FolderError(f"{path} is damaged or no safetensors file: {str(problem).splitlines()[0]}.") from None


def _without_arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {ARRAY: torch.from_numpy(value)}
    if isinstance(value, np.generic):
        return value.item()
    return _inside(value, _without_arrays)


def _with_arrays(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {ARRAY}:
        return value[ARRAY].numpy()
    return _inside(value, _with_arrays)


def _inside(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with everything inside of it changed."""
    if type(value) is dict:  # not the ordered ones of torch, which have attributes
        return {name: change(one) for name, one in value.items()}
    return type(value)(change(one) for one in value) if type(value) in (list, tuple) else value


# The trained model

#: The column of the class, or of the number, that is predicted.
PREDICTION = "prediction"
#: This many records of a table, and this many texts, are predicted at a time.
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

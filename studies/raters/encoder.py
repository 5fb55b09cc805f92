"""The encoder of a table of ratings: the numbers of user and film, and the genres of the film. It is kept as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from betastar.datasets.errors import StudyError

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from torch import Tensor

#: Version of the format, in encoder.json.
FORMAT = 1
#: The columns of a table of ratings, and what stands between the genres of a film.
USER, FILM, GENRES, BETWEEN = "userId", "movieId", "genres", "|"


@dataclass(frozen=True)
class RatingEncoder:
    """How a rating becomes inputs of a model with embeddings, and which class each of its outputs is.

    Attributes
    ----------
    label : str
        The column that the model predicts.
    classes : tuple of str
        The class of each output.
    users, films : tuple of int
        The users and the films that have an embedding of their own. All other films share one.
    genres : tuple of str
        The genres that the model knows.
    features : int
        The number of features of an embedding.
    left_out : tuple of str
        Columns that the table may have and the model does not see.
    """

    label: str
    classes: tuple[str, ...]
    users: tuple[int, ...]
    films: tuple[int, ...]
    genres: tuple[str, ...]
    features: int
    left_out: tuple[str, ...] = ()

    @property
    def label_scale(self) -> None:
        """None: the label is a class, not a number."""
        return None

    def model_words(self, hidden: tuple[int, ...]) -> str:
        """The model with hidden layers of these widths, in words for its card."""
        layers = f" and hidden layers of {', '.join(map(str, hidden))}" if hidden else ""
        return (
            f"A network with embeddings of {len(self.users):,} users, {len(self.films):,} films and {len(self.genres)} genres "
            f"({self.features} features each){layers}"
        )

    @property
    def fitted_words(self) -> str:
        """What the encoder holds of the records, in words for the card of its model."""
        return (
            "the users, films and genres that the model knows. The users are all of the data set, and the films are those that "
            "users who count as public rated most."
        )

    def tensor(self, frame: DataFrame) -> Tensor:
        """Encode the ratings of a table as the model takes them.

        Parameters
        ----------
        frame : DataFrame
            The table, with the columns of the user, the film and its genres. The rating is not looked at.

        Returns
        -------
        Tensor
            For each rating the number of the user, the number of the film (0 for all other films), and 0 or 1 for each genre.

        Raises
        ------
        StudyError
            If a column is missing, or if a user is unknown.
        """
        import torch

        for name in (USER, FILM, GENRES):
            if name not in frame.columns:
                raise StudyError(f"the table has no column {name!r}; it has {', '.join(map(repr, frame.columns[:20]))}.")
            if missing := int(frame[name].isna().sum()):
                raise StudyError(f"the column {name!r} is missing (NaN) in {missing} records: fill it in.")
        users = frame[USER].map({user: number for number, user in enumerate(self.users)})
        if users.isna().any():
            strange = frame[USER][users.isna()].iloc[0]
            raise StudyError(f"the model was not trained with the user {strange}: leave these records out.")
        films = frame[FILM].map({film: number + 1 for number, film in enumerate(self.films)}).fillna(0)
        columns = [users, films, *(self._has(frame[GENRES], genre) for genre in self.genres)]
        return torch.stack([torch.as_tensor(column.to_numpy(copy=True), dtype=torch.float32) for column in columns], dim=1)

    def _has(self, genres: Series, genre: str) -> Series:
        return (BETWEEN + genres.astype(str) + BETWEEN).str.contains(BETWEEN + genre + BETWEEN, regex=False)

    def to_json(self) -> str:
        """The text of encoder.json."""
        return json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RatingEncoder:
        """The encoder that an object of JSON describes; raises ValueError, TypeError or KeyError for another object."""
        if values["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {values['format']!r}: install the version of betastar that made it")
        features = values["features"]
        if type(features) is not int or not 1 <= features <= 4096:
            raise ValueError(f"features must be a whole number from 1 to 4096, got {features!r}")
        classes, genres, left_out = (tuple(map(str, values[name])) for name in ("classes", "genres", "left_out"))
        users, films = (tuple(map(int, values[name])) for name in ("users", "films"))
        return cls(str(values["label"]), classes, users, films, genres, features, left_out)

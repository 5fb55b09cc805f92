"""The encoder of a table of ratings: the numbers of user and film, and the genres of the film."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from betastar.runs import StudyError

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from torch import Tensor

#: The columns of a table of ratings, and what stands between the genres of a film.
USER, FILM, GENRES, BETWEEN = "userId", "movieId", "genres", "|"


@dataclass(frozen=True)
class RatingEncoder:
    """How a rating becomes inputs of a model with embeddings.

    Attributes
    ----------
    users, films : tuple of int
        The users and the films that have an embedding of their own. All other films share one.
    genres : tuple of str
        The genres that the model knows.
    features : int
        The number of features of an embedding.
    """

    users: tuple[int, ...]
    films: tuple[int, ...]
    genres: tuple[str, ...]
    features: int

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

"""The model of ratings: embeddings of the user, the film and its genres."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from studies.raters.encoder import RatingEncoder

#: The deviation of an embedding before training. That of torch, 1, would drown what a rating says.
SPREAD = 0.1


class RatingModel(nn.Module):
    """The user, what the film is and how well both go together, and linear layers that judge these.

    Parameters
    ----------
    encoder : RatingEncoder
        The users, films and genres.
    classes : int
        The number of outputs.
    hidden : tuple of int
        The widths of the hidden layers.
    """

    def __init__(self, encoder: RatingEncoder, classes: int, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        size = encoder.features
        self.user = nn.Embedding(len(encoder.users), size)
        self.film = nn.Embedding(len(encoder.films) + 1, size)
        self.genres = nn.Linear(len(encoder.genres), size)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise([3 * size, *hidden, classes]):
            layers += [nn.Linear(wide, narrow), nn.Tanh()]
        self.head = nn.Sequential(*layers[:-1])
        for embedding in (self.user, self.film):
            nn.init.normal_(embedding.weight, std=SPREAD)

    def forward(self, ratings: Tensor) -> Tensor:
        """The outputs for ratings as `RatingEncoder.tensor` encodes them."""
        user, film = self.user(ratings[:, 0].long()), self.film(ratings[:, 1].long())
        about = film + self.genres(ratings[:, 2:])
        together: Tensor = self.head(torch.cat([user, about, user * about], dim=1))
        return together

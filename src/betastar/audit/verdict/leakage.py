"""Leakage without a model of the attack: nearest neighbours learn from games what the outputs tell about the worlds.

After Cherubin, Chatzikokolakis, Palamidessi, "F-BLEAU: Fast Black-box Leakage Estimation" (2019). What such an attacker reaches
bounds the Bayes security of the outputs from above, never from below.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from betastar import validation
from betastar.audit.common import Verdict
from betastar.audit.verdict import intervals
from betastar.display import Display
from betastar.risk import Bound
from betastar.rounding import down, up

#: Widest interval of the Bayes security that is worth having, unless another is asked for.
WIDTH = 0.2
#: Fewest games that teach anything, and how often their number is halved to see how the estimate moves.
FEWEST, HALVINGS = 16, 6
#: A move of the estimate that is too small to matter.
ROOM = 0.01
#: Priors that were used to draw the games are refused in at most one of a billion cases.
UNLIKELY = 1e-9

CAVEAT = (
    "A real attacker reaches this, so the Bayes security of these outputs is not above the upper end. It is no guarantee: a "
    "better attacker, more games or other features may show more leakage. Nearest neighbours come near the best attacker in the "
    "limit of many games only, and until then the outputs look safer than they are. Nothing is said about other records or "
    "other outputs."
)


@dataclass(frozen=True)
class Leakage(Verdict):
    """What a nearest-neighbour attacker learned about the worlds from the outputs.

    Attributes
    ----------
    worlds : int
        The number of worlds.
    games : int
        The number of all games.
    examined : int
        The number of games that test the attacker, who learned nothing from them.
    features : int
        The number of outputs of a game.
    neighbours : int
        How many neighbours vote; the teaching games chose this number.
    wrong : int
        The number of wrong guesses in the examined games.
    prior : tuple of float
        The probability of each world.
    confidence : float
        The confidence of the interval.
    seed : int
        The seed that chose the halves.
    bayes_security : Bound
        The error of this attacker (or of one who ignores the outputs, if that is less) in units of the error without outputs,
        with its Clopper-Pearson interval. Only its upper end bounds the Bayes security of the outputs.
    convergence : tuple of (int, float)
        The number of teaching games and the estimate, the fewest first.

    Examples
    --------
    >>> import numpy as np
    >>> from betastar import audit
    >>> worlds = np.random.default_rng(0).integers(2, size=1000)
    >>> estimate = audit.leakage(worlds, worlds[:, None])  # outputs that say it all
    >>> estimate.wrong, estimate.bayes_security.upper < 0.02
    (0, True)
    """

    derived: ClassVar[tuple[str, ...]] = ("converged", "caveat", "sentence")
    caveat: ClassVar[str] = CAVEAT

    worlds: int
    games: int
    examined: int
    features: int
    neighbours: int
    wrong: int
    prior: tuple[float, ...]
    confidence: float
    seed: int
    bayes_security: Bound
    convergence: tuple[tuple[int, float], ...]

    @property
    def converged(self) -> bool:
        """Whether the estimates from a quarter and from half of the teaching games are near the last one.

        Near means within half the width of its interval, or within ROOM.
        """
        room = max(ROOM, 0.5 * float(self.bayes_security.width))
        last = [estimate for _, estimate in self.convergence[-3:]]
        return len(last) == 3 and all(abs(estimate - last[-1]) <= room for estimate in last)

    @property
    def sentence(self) -> str:
        """The verdict for a person; the interval is rounded outwards."""
        low, high = down(self.bayes_security.lower, 3), up(min(self.bayes_security.upper, 1.0), 3)
        attacker = "the nearest neighbour" if self.neighbours == 1 else f"the {self.neighbours} nearest neighbours"
        none = self.bayes_security.upper >= 1.0
        said = (
            "no leakage was found, which does not prove that there is none" if none else f"that of the outputs is at most {high}"
        )
        more = "" if none else ", and may be less"
        return (
            f"An attacker who asks {attacker} is wrong in {self.wrong:,} of {self.examined:,} games, a Bayes security of "
            f"{self.bayes_security.estimate:.3f} against this attacker ({100.0 * self.confidence:g} % interval {low} to {high}): "
            f"{said}{more}{'.' if self.converged else '; more games may change the estimate.'}"
        )

    def _display(self, brief: bool) -> Display:
        return Display((self.sentence, self.caveat))


def leakage(
    worlds: ArrayLike,
    outputs: ArrayLike,
    *,
    seed: int = 0,
    confidence: float = 0.95,
    prior: ArrayLike | None = None,
    width: float = WIDTH,
) -> Leakage:
    """How much the outputs of games tell about their worlds, by a nearest-neighbour attacker.

    Half of the games, drawn with `seed`, teach: they set the scale of each feature and choose between 1, ln n and √n neighbours,
    each game judged by the others. The attacker is then fixed, and the other half of the games tests them: their errors there are
    binomial.

    Parameters
    ----------
    worlds : sequence of int
        The number of each game's world, 0, 1, ….
    outputs : array
        What the attacker sees: a row of numbers for each game.
    seed : int
        Chooses the halves.
    confidence : float
        The confidence of all intervals.
    prior : sequence of float, optional
        The probabilities with which the worlds were drawn; equal ones by default.
    width : float
        The widest interval of the Bayes security that is accepted.

    Returns
    -------
    Leakage
        The estimate, its interval, and how it converged.

    Raises
    ------
    ValueError
        If an argument is not allowed, or the games are too few for the width.

    Examples
    --------
    >>> import numpy as np
    >>> from betastar import audit
    >>> random = np.random.default_rng(0)
    >>> worlds = random.integers(2, size=4000)
    >>> estimate = audit.leakage(worlds, worlds[:, None] + random.normal(size=(4000, 1)))
    >>> round(estimate.bayes_security.estimate, 1)  # the overlap of N(0, 1) and N(1, 1) is 0.617
    0.6
    """
    labels, seen, priors = _games(worlds, outputs, prior)
    confidence = validation.probability("confidence", confidence, strict=True)
    guessing_error = 1.0 - float(priors.max())
    games = len(labels)
    _enough(games, guessing_error, confidence, validation.positive("width", width))
    order = np.random.default_rng(validation.seed(seed)).permutation(games)
    taught, held = order[: games // 2], order[games // 2 :]
    convergence = []
    for number in _growing(len(taught)):
        lesson = taught[:number]
        scaled, asked = _standardise(seen[lesson], seen[held])
        neighbours = _choose(scaled, labels[lesson], len(priors))
        near = _nearest(scaled, asked, neighbours)
        wrong = np.count_nonzero(_vote(labels[lesson][near], len(priors)) != labels[held])
        convergence.append((number, min(1.0, float(wrong) / len(held) / guessing_error)))
    error = intervals.clopper_pearson(int(wrong), len(held), confidence)
    return Leakage(
        worlds=len(priors),
        games=games,
        examined=len(held),
        features=seen.shape[1],
        neighbours=neighbours,
        wrong=int(wrong),
        prior=tuple(float(p) for p in priors),
        confidence=confidence,
        seed=int(seed),
        bayes_security=Bound(*(min(1.0, e / guessing_error) for e in (error.lower, error.estimate, error.upper))),
        convergence=tuple(convergence),
    )


def _growing(most: int) -> list[int]:
    """Halves of halves of a number, the smallest first."""
    return [most >> i for i in range(HALVINGS, -1, -1) if most >> i >= FEWEST]


def _standardise(lesson: NDArray[Any], asked: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean 0 and deviation 1 in the lesson; a feature that is constant there tells nothing and is left out."""
    middle, scale = lesson.mean(axis=0), lesson.std(axis=0)
    useful = scale > 1e-12 * np.abs(lesson).max(axis=0)
    return (lesson[:, useful] - middle[useful]) / scale[useful], (asked[:, useful] - middle[useful]) / scale[useful]


def _choose(lesson: NDArray[Any], labels: NDArray[Any], worlds: int) -> int:
    """The number of neighbours that are wrong least often about each game of the lesson, when the other games vote.

    At a tie it is the larger number.
    """
    number = len(labels)
    options = sorted({2 * int(0.5 * wanted) + 1 for wanted in (1.0, log(number), sqrt(number))})  # odd: two worlds never tie
    near = _nearest(lesson, lesson, options[-1] + 1)
    self = near == np.arange(number)[:, None]
    self[~self.any(axis=1), -1] = True  # hidden behind others with the same output
    votes = labels[near[~self].reshape(number, -1)]
    wrong = {k: np.count_nonzero(_vote(votes[:, :k], worlds) != labels) for k in options}
    return min(options, key=lambda k: (wrong[k], -k))


def _vote(votes: NDArray[Any], worlds: int) -> NDArray[Any]:
    """The world with most votes in each row, the nearest neighbour's counting for one and a half."""
    counts = np.stack([(votes == world).sum(axis=1) + 0.5 * (votes[:, 0] == world) for world in range(worlds)])
    return counts.argmax(axis=0)


def _nearest(lesson: NDArray[Any], asked: NDArray[Any], neighbours: int) -> NDArray[Any]:
    """The numbers of the outputs of the lesson that are nearest to each output that is asked about, the nearest first."""
    if lesson.shape[1] == 0:  # all alike
        return np.broadcast_to(np.arange(neighbours), (len(asked), neighbours))
    from scipy.spatial import cKDTree

    return cKDTree(lesson).query(asked, k=np.arange(1, neighbours + 1))[1]


def _games(worlds: ArrayLike, outputs: ArrayLike, prior: ArrayLike | None) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    labels = np.atleast_1d(validation.whole("worlds", worlds, low=0))
    seen = np.asarray(validation.numbers("outputs", outputs, "finite numbers of size at most 1e100", low=-1e100, high=1e100))
    if labels.ndim != 1:
        raise ValueError(f"worlds must be a list with one number for each game, got shape {labels.shape}.")
    if seen.ndim != 2 or seen.shape[1] == 0 or len(seen) != len(labels):
        raise ValueError(f"outputs must have a row for each of the {len(labels)} games, got shape {seen.shape}.")
    if len(np.unique(labels)) < 2:
        raise ValueError(f"worlds must be of at least two kinds, got {np.unique(labels).tolist()} only.")
    number = int(labels.max()) + 1
    if prior is None and number > len(labels):
        raise ValueError(f"worlds must be numbered 0, 1, … without gaps, got {number - 1} among {len(labels)} games.")
    priors = np.full(number, 1.0 / number) if prior is None else np.atleast_1d(validation.fraction("prior", prior))
    if priors.ndim != 1 or abs(priors.sum() - 1.0) > 1e-9:
        raise ValueError(f"prior must be a list of probabilities that add up to 1, got {prior!r}.")
    if number > priors.size:
        raise ValueError(f"worlds must be below {priors.size}, the number of priors, got {number - 1}.")
    for world, count in enumerate(np.bincount(labels, minlength=priors.size)):
        if priors[world] not in intervals.clopper_pearson(int(count), len(labels), 1.0 - UNLIKELY / priors.size):
            raise ValueError(
                f"prior must be the probabilities with which the worlds were drawn, got {priors[world]:.4g} for world {world}, "
                f"which was drawn in {int(count)} of {len(labels)} games."
            )
    return labels, seen, priors


def _enough(games: int, guessing_error: float, confidence: float, width: float) -> None:
    needed = 2 * max(intervals.games_needed(2.0 * guessing_error * width, confidence), FEWEST)
    if games < needed:
        raise ValueError(
            f"worlds must be of at least {needed} games for an interval of the Bayes security no wider than {width:g} at "
            f"confidence {confidence:g}, got {games}. Play more, or accept a larger width."
        )

"""The attackers of real training: what each of them sees, and what they conclude from it.

The attacker on updates sees every update as the optimizer is about to apply it (a hook of PyTorch's own, so that the user's
loop stays as it is), and weighs the candidates by the likelihood of what they saw. In units of the clipping norm, a step shows
y = ξ·g + o + σ·z, ξ = 1 with probability p: g is the candidate's clipped gradient at the weights before the step, o the sum of
the others, taken for Gaussian with mean p·Σ g_j and covariance p(1-p)·Σ g_j g_jᵀ. With Σ the covariance of o + σ·z, a step
speaks for a candidate by log(1 - p + p·exp((y - E o)ᵀΣ⁻¹g - gᵀΣ⁻¹g/2)). For a canary, whose weight nobody else moves, o = 0.
`Evidence` weighs other samplings than Poisson's.

The attackers of the final model learn from games whose world is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln, logit, logsumexp, xlog1py, xlogy
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from betastar.audit.common import AuditError, rate_and_noise, segment_at
from betastar.audit.evidence.challenges import Canaries, Criterion
from betastar.audit.evidence.recorder import has_clipped_sum
from betastar.dpsgd import DPSGD, IN_EPOCHS
from betastar.dpsgd import batches_per_epoch as batches
from betastar.steps.poisson import log_mixture
from betastar.training import Records, Secret
from betastar.training.private_training import STEPPING
from betastar.validation import WrongValueError

# --- The attacker on updates


class UpdateAttacker:
    """The attacker who sees every update; a subclass says what they measure of it.

    Parameters
    ----------
    evidence : Evidence
        What is believed to be run, and the log-likelihood of each candidate so far.

    Attributes
    ----------
    trace : list of float
        How much each step spoke for the first candidate, against the last.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.trace: list[float] = []

    @property
    def logs(self) -> NDArray[Any]:
        """The log-likelihood of each world: of a person's records, what each says by itself is added up."""
        logs = self.evidence.logs
        return logs if logs.ndim == 1 else logs.sum(axis=1)

    def step(self, trained: set[int]) -> None:
        number = len(self.trace)
        towards, squares = self.observe(*rate_and_noise(self.evidence.run, number), trained)
        self.evidence.add(number, towards, squares)
        self.trace.append(float(np.sum(towards[0] - towards[-1])))

    def observe(self, rate: float, noise: float, trained: set[int]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Measure a step for each candidate: (y - E o)ᵀΣ⁻¹g and gᵀΣ⁻¹g. `trained` holds the ids of the weights that get noise.

        Where a candidate is several records of a person, both have a column for each of them.
        """
        raise NotImplementedError


@contextmanager
def watching(model: nn.Module, attacker: UpdateAttacker, private: bool = True) -> Iterator[None]:
    """Let the attacker see each step while the user's code trains this model.

    Opacus keeps the clipped sum beside each weight, and has put noise on it before PyTorch's optimizer steps: a step without that
    sum is not the mechanism that is audited, or not yet.
    """
    own = {id(parameter) for parameter in model.parameters()}
    steppers: list[Optimizer] = []

    def hook(optimizer: Optimizer, *_: object) -> None:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        mine = [parameter for parameter in held if id(parameter) in own and parameter.requires_grad]
        if not mine:
            return
        if private and STEPPING.get() is None and not all(map(has_clipped_sum, mine)):
            raise AuditError(
                "train must use PrivateTraining, or make its optimizer private with Opacus, or divisor must be given, got a step "
                f"of {type(optimizer).__name__} alone."
            )
        if optimizer not in steppers:
            steppers.append(optimizer)
        if len(steppers) > 1:
            names = " and ".join(type(one).__name__ for one in steppers)
            raise AuditError(f"train must have one optimizer for the whole model, got two: {names}.")
        try:
            with torch.no_grad():
                attacker.step({id(parameter) for parameter in mine})
        except AuditError:
            raise
        except Exception as problem:
            raise AuditError(f"the attacker could not follow this training, {type(problem).__name__}: {problem}") from problem

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class CanaryAttacker(UpdateAttacker):
    """Measures the canaries' weights alone.

    Each candidate moves one weight of one canary or, if there is a single weight, all of them move this one. `signs` says which
    way; it is 0 for one that is not there.
    """

    def __init__(self, evidence: Evidence, model: Canaries, signs: NDArray[Any], scale: float) -> None:
        super().__init__(evidence)
        self._weight, self._signs, self._scale = model.canary.weight, signs, scale

    def observe(self, rate: float, noise: float, trained: set[int]) -> tuple[NDArray[Any], NDArray[Any]]:
        if id(self._weight) not in trained or self._weight.grad is None:
            raise AuditError(
                "train must give its optimizer all of model.parameters(): a canary has a weight of its own among them."
            )
        seen = self._weight.grad.detach().cpu()[0].double().numpy() * self._scale
        return seen * self._signs / noise**2, (self._signs / noise) ** 2


class RecordAttacker(UpdateAttacker):
    """Measures along the gradients of the candidates, at the weights before the step, on a copy of the model.

    Parameters
    ----------
    evidence : Evidence
        As for every attacker.
    model : Module
        The model that is trained.
    gradients : RecordGradients
        The gradients of single records, on a copy of the model.
    candidates : Records
        The candidates that are records.
    there : list of bool
        Which worlds have records; the others have empty places.
    scale : float
        From a gradient as the optimizer sees it to clipping norms.
    others : callable or None
        `others()` gives some of the other records. With None the attacker takes them to contribute nothing.
    number : int
        The number of the other records.

    Attributes
    ----------
    farthest : float
        The largest distance between candidates so far, in clipping norms.
    """

    def __init__(
        self,
        evidence: Evidence,
        model: nn.Module,
        gradients: RecordGradients,
        candidates: Records,
        there: list[bool],
        scale: float,
        others: Callable[[], Records] | None,
        number: int,
    ) -> None:
        super().__init__(evidence)
        each = evidence.logs.size // len(there)
        self._model, self.gradients, self._candidates, self._scale = model, gradients, candidates, scale
        self._there, self._others, self._number = torch.tensor(there).repeat_interleave(each), others, number
        self.farthest = 0.0

    def observe(self, rate: float, noise: float, trained: set[int]) -> tuple[NDArray[Any], NDArray[Any]]:
        own = {name: p for name, p in self._model.named_parameters() if id(p) in trained}
        self.gradients.follow(self._model, list(own))
        seen = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().cpu() for p in own.values()])
        seen = seen.double() * self._scale
        clipped = self.gradients(self._candidates).double()
        towards = torch.zeros(len(self._there), clipped.shape[1], dtype=torch.float64)
        towards[self._there] = clipped
        self.farthest = max(self.farthest, float(torch.pdist(towards).max()))
        weighed = towards
        if self._others is not None:
            sample = self.gradients(self._others())
            seen = seen - rate * self._number * sample.double().mean(dim=0)
            # Two sources of variance: which of the others were sampled, and the sample that estimates their expected sum.
            missing = max(0.0, 1.0 / len(sample) - 1.0 / self._number)
            each = (rate * (1.0 - rate) * self._number + (rate * self._number) ** 2 * missing) / len(sample)
            if each > 0.0:
                core = (sample @ sample.T).double() + torch.eye(len(sample), dtype=torch.float64) * (noise * noise / each)
                inner = (sample @ towards.T.to(sample.dtype)).double()
                weighed = towards - (torch.linalg.solve(core, inner).T.to(sample.dtype) @ sample).double()  # Woodbury
        weighed, shape = weighed / (noise * noise), self.evidence.logs.shape
        return (weighed @ seen).numpy().reshape(shape), (weighed * towards).sum(dim=1).numpy().reshape(shape)


# --- The evidence for each candidate over the steps of a run, by the likelihood of what was seen


@dataclass
class Evidence:
    """The log-likelihood of each candidate so far, up to a constant.

    Where each record takes part once in each epoch (balls in bins, shuffled batches), an epoch speaks for a candidate by the mean
    over its steps of the likelihood ratios; otherwise, each step speaks for itself.

    Attributes
    ----------
    run : DPSGD
        What the attacker believes to be run.
    logs : array of float
        The log-likelihoods.
    copies : int
        The number of records, all alike, that a candidate consists of; each is sampled by itself.
    """

    run: DPSGD
    logs: NDArray[Any]
    copies: int = 1
    _epoch: NDArray[Any] | None = field(default=None, init=False)

    def add(self, step: int, towards: NDArray[Any], squares: NDArray[Any]) -> None:
        """Add a step. For each candidate, with one hit the log-likelihood ratio is towards - squares / 2."""
        segment, place = segment_at(self.run, step)
        rate = float(segment.sample_rate)
        if self.copies > 1:  # of copies in epochs this forgets that each is there once: weaker, and valid all the same
            self.logs = self.logs + log_of_hits(towards, squares, rate, self.copies)
        elif segment.sampling not in IN_EPOCHS:
            self.logs = self.logs + log_mixture(towards - 0.5 * squares, rate)
        else:
            if segment.times_per_epoch > 1:
                text = "{argument} must be 1 for this audit, got {value}: its attackers know of one batch an epoch only."
                raise WrongValueError("times_per_epoch", text, {"value": str(segment.times_per_epoch)})
            length = int(batches(segment.sample_rate, segment.sampling))
            ratio = towards - 0.5 * squares
            self._epoch = ratio if self._epoch is None else np.logaddexp(self._epoch, ratio)
            if place % length == length - 1:
                self.logs, self._epoch = self.logs + self._epoch - log(length), None


def log_of_hits(towards: NDArray[Any], squares: NDArray[Any], rate: float, copies: int) -> NDArray[Any]:
    """log Σ_j Bin(j; copies, rate)·exp(j·towards - j²·squares/2)."""
    hits = np.arange(copies + 1.0)
    chances = gammaln(copies + 1.0) - gammaln(hits + 1.0) - gammaln(copies - hits + 1.0)
    chances = chances + xlogy(hits, rate) + xlog1py(copies - hits, -rate)
    answer: NDArray[Any] = logsumexp(
        chances + np.multiply.outer(towards, hits) - 0.5 * np.multiply.outer(squares, hits**2), axis=-1
    )
    return answer


# --- Gradients of single records on a copy of the model, as the attackers compute them

#: Rows of some records, by the names of their arguments.
Rows: TypeAlias = dict[int | str, Tensor]
#: Gradients that are written out at once.
PORTION = 256


class RecordGradients:
    """Clipped gradients of single records, in clipping norms, written out: (records, weights)."""

    def __init__(self, copy: nn.Module, criterion: Criterion, norm: float) -> None:
        self.copy, self.criterion, self._norm = copy.cpu().eval(), criterion, norm
        self.names = [name for name, parameter in copy.named_parameters() if parameter.requires_grad]
        self._together = True

    def follow(self, model: nn.Module, trained: list[str] | None = None) -> None:
        """Copy all that the model holds. `trained` names the weights whose gradients count; without it they stay the same."""
        self.copy.load_state_dict(model.state_dict())
        self.names = self.names if trained is None else trained

    def raw(self, records: Records) -> Tensor:
        """The gradients before they are clipped, as the optimizer sees them."""
        weights = {name: p.detach() for name, p in self.copy.named_parameters() if name in self.names}
        rows = records.rows()

        def loss(weights: dict[str, Tensor], row: Rows) -> Tensor:
            one = records.changed(lambda key, value: row[key][None] if key in row else value)
            return self.criterion(functional_call(self.copy, weights, one.inputs, one.named), one.target).sum()

        with torch.enable_grad():
            if self._together:
                try:
                    by_name = vmap(grad(loss), (None, 0), chunk_size=PORTION)(weights, rows)
                    return torch.cat([by_name[name].flatten(1) for name in self.names], dim=1)
                except RuntimeError:  # a layer that cannot be vectorised: one by one
                    self._together = False
            alone = [grad(loss)(weights, {key: value[i] for key, value in rows.items()}) for i in range(len(records))]
            return torch.stack([torch.cat([one[name].flatten() for name in self.names]) for one in alone])

    def __call__(self, records: Records) -> Tensor:
        unclipped = self.raw(records)
        lengths = unclipped.double().norm(dim=1, keepdim=True)
        return unclipped * (1.0 / lengths.clamp(min=self._norm)).to(unclipped.dtype)


class GapClippedGradients(RecordGradients):
    """The same under gap clipping: pulled towards the mean over all values of the secret (theory, section 9).

    Parameters
    ----------
    copy, criterion, norm : objects
        As for `RecordGradients`.
    secret : Secret
        The secret whose gap is clipped.
    gap : float
        The largest distance between two values, in clipping norms.
    """

    def __init__(self, copy: nn.Module, criterion: Criterion, norm: float, secret: Secret, gap: float) -> None:
        super().__init__(copy, criterion, norm)
        self._secret, self._gap = secret, gap

    def __call__(self, records: Records) -> Tensor:
        count = self._secret.count
        parts = []
        for start in range(0, len(records), max(1, PORTION // count)):
            some = records.take(slice(start, start + max(1, PORTION // count)))
            variants = super().__call__(self._secret.variants(some, range(count))).unflatten(0, (len(some), count))
            mean = torch.einsum("na,naw->nw", self._secret.shares(some).to(variants), variants)
            away = variants[torch.arange(len(some)), self._secret.own(some)] - mean
            lengths = away.double().norm(dim=1, keepdim=True)
            parts.append(mean + away * (0.5 * self._gap / lengths.clamp(min=max(0.5 * self._gap, 1e-300))).to(away))
        return torch.cat(parts)


# --- Statistics that reveal trainings which are not what they claim; they mislead an attacker who believes the claim
#
# A trace holds one number for each step: what was seen of the challenge, which is larger in the positive world. Each statistic is
# large in the positive world; one half of the games chooses the best of them, and the other half measures it.


def statistics(traces: NDArray[Any], positive: NDArray[Any], run: DPSGD) -> list[NDArray[Any]]:
    """All statistics of the traces, which have the shape (games, steps)."""
    return [traces.sum(axis=1), outliers(traces), *repeated_batches(traces, run), repeated_randomness(traces, positive)]


def outliers(traces: NDArray[Any]) -> NDArray[Any]:
    """The largest and the smallest number against the median.

    Noise that is the same at each step, or too small, cannot hide a single hit.
    """
    return traces.max(axis=1) + traces.min(axis=1) - 2.0 * np.median(traces, axis=1)


def repeated_batches(traces: NDArray[Any], run: DPSGD) -> list[NDArray[Any]]:
    """The largest and the smallest sum over steps of equal number in each round of 1/p steps.

    They reveal batches that come in the same order in each round.
    """
    length = round(1.0 / float(np.max([segment.sample_rate for segment in run.segments])))
    whole = traces.shape[1] // length
    if length < 2 or whole < 2:
        return []
    folded = traces[:, : whole * length].reshape(len(traces), whole, length).sum(axis=1)
    return [folded.max(axis=1) + folded.min(axis=1)]


def repeated_randomness(traces: NDArray[Any], positive: NDArray[Any]) -> NDArray[Any]:
    """How much nearer the nearest even game of the positive world is than the nearest one of the other world.

    It reveals randomness that repeats itself.
    """
    even = np.arange(len(traces)) % 2 == 0
    nearest = []
    for world in (positive, ~positive):
        known = traces[even & world]
        if not len(known):
            return np.zeros(len(traces))
        squares = (traces**2).sum(axis=1)[:, None] + (known**2).sum(axis=1) - 2.0 * traces @ known.T
        squares[np.flatnonzero(even & world), np.arange(len(known))] = np.inf  # not its own neighbour
        nearest.append(np.sqrt(np.maximum(squares.min(axis=1), 0.0)))
    return nearest[1] - nearest[0]


# --- What attackers of the final model see: outputs for some records, and the weights along gradients


@torch.no_grad()
def confidences(copy: nn.Module, criterion: Criterion, records: Records) -> NDArray[Any]:
    """The log-confidence of the model in each record's target: minus the loss of the record."""
    output = copy(*records.inputs, **records.named)
    if isinstance(output, Tensor):
        losses = [criterion(output[i : i + 1], records.target[i : i + 1]).sum() for i in range(len(records))]
    else:  # an object that cannot be cut into records
        parts = (records.take(slice(i, i + 1)) for i in range(len(records)))
        losses = [criterion(copy(*one.inputs, **one.named), one.target).sum() for one in parts]
    return -torch.stack(losses).double().numpy()


@torch.no_grad()
def margins(copy: nn.Module, criterion: Criterion, candidates: Records) -> NDArray[Any]:
    """What an attacker who only asks the model sees.

    For each candidate it is the logit of the model's confidence, which is the margin of its class over the others, where there
    are two or more classes, and minus the loss otherwise.
    """
    output, target = copy(*candidates.inputs, **candidates.named), candidates.target
    classes = isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] > 1
    if not classes or not isinstance(target, Tensor) or target.is_floating_point() or target.ndim != 1:
        return confidences(copy, criterion, candidates)
    own = output.gather(1, target[:, None])[:, 0]
    rest = output.scatter(1, target[:, None], -torch.inf).logsumexp(dim=1)
    return (own - rest).double().numpy()


def weights(gradients: RecordGradients, candidates: Records) -> NDArray[Any]:
    """What an attacker who holds the final weights sees besides: the length of each candidate's gradient, weights along it."""
    unclipped = gradients.raw(candidates).double()
    lengths = unclipped.norm(dim=1)
    own = torch.cat([p.detach().flatten() for name, p in gradients.copy.named_parameters() if name in gradients.names]).double()
    along = (unclipped @ own) / lengths.clamp(min=1e-12)
    return torch.cat([lengths.clamp(min=1e-12).log(), along]).numpy()


# --- Attacks on the final model that learn from reference models: games whose world is known
#
# Cross-validation among the reference models chooses one of three attacks, before any other game is looked at, so that right
# guesses in the other games are binomial. The reference models are trained on the same other records, as an attacker could do who
# knows everything but the challenge.

#: Parts of the reference models, each of which is guessed by what the others teach.
FOLDS = 5
#: Fewest reference models of a world that teach anything about it.
LEAST = 2
#: How much more often than the first attack another one must be right among the reference models to be chosen instead of it, in
#: standard deviations of the difference: below that the difference may be chance.
SURER = 1.0
#: Log-likelihood of a world that the reference models do not teach.
_NEVER = -1e3


@dataclass(frozen=True)
class Seen:
    """What an attacker sees of some final models.

    Attributes
    ----------
    features : array of float
        A row of numbers for each model.
    confidences : array of float
        For each model, its log-confidence in each candidate and then in each record of the population; no columns where
        candidates do not change outputs.
    candidates : int
        The number of candidates.
    """

    features: NDArray[Any]
    confidences: NDArray[Any]
    candidates: int

    def __len__(self) -> int:
        return len(self.features)

    def take(self, which: slice | NDArray[Any]) -> Seen:
        """Some of the models."""
        return Seen(self.features[which], self.confidences[which], self.candidates)


#: From reference models, their worlds 0, 1, … and other models to the log-likelihood of each world for each of these.
Attack: TypeAlias = Callable[[Seen, NDArray[Any], Seen], NDArray[Any]]


def linear_discriminant(lesson: Seen, world: NDArray[Any], asked: Seen) -> NDArray[Any]:
    """Gaussians with a common covariance."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    known, unknown = _standardised(lesson.features, asked.features)
    worlds = int(world.max()) + 1
    attacker = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=np.full(worlds, 1.0 / worlds))
    answer: NDArray[Any] = attacker.fit(known, world).predict_log_proba(unknown)
    return answer


def likelihood_ratio(lesson: Seen, world: NDArray[Any], asked: Seen) -> NDArray[Any]:
    """A Gaussian of its own for each world, as in LiRA (Carlini and others 2022, "Membership inference attacks from first
    principles"), which has one feature: the logit of the confidence."""
    return _own_gaussians(lesson.features, world, asked.features)


def pairwise_ratios(lesson: Seen, world: NDArray[Any], asked: Seen) -> NDArray[Any]:
    """For each candidate, how many records of the population it beats, as in RMIA (Zarifzadeh, Liu, Shokri 2024).

    A candidate x beats z if p(x)/p̄(x) ≥ p(z)/p̄(z), where p is the confidence of the model and p̄ the mean one of the reference
    models. The log-odds of the share then have a Gaussian for each world.
    """
    typical = logsumexp(lesson.confidences, axis=0) - log(len(lesson))
    known, unknown = (_beaten(one.confidences - typical, one.candidates) for one in (lesson, asked))
    return _own_gaussians(known, world, unknown)


#: The attacks by their names for people. Where another one is not clearly better, the first is chosen.
ATTACKS: dict[str, Attack] = {
    "linear discriminant": linear_discriminant,
    "likelihood ratio (LiRA)": likelihood_ratio,
    "pairwise ratios (RMIA)": pairwise_ratios,
}


def learn(seen: Seen, world: NDArray[Any], prior: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """The log-likelihood of each world in the odd games, by the attack that the even games choose and teach; and its name."""
    asked, even = seen.take(slice(1, None, 2)), world[::2]
    times = np.bincount(even, minlength=len(prior))
    known = np.flatnonzero(times >= LEAST)
    logs = np.full((len(asked), len(prior)), _NEVER)
    if len(known) < 2:
        logs[:, times == times.max()] = 0.0
        return logs, next(iter(ATTACKS))
    useful = np.flatnonzero(np.isin(even, known))
    lesson, taught = seen.take(2 * useful), np.searchsorted(known, even[useful])
    name = chosen(lesson, taught, prior[known])
    logs[:, known] = ATTACKS[name](lesson, taught, asked)
    return logs, name


def chosen(lesson: Seen, world: NDArray[Any], prior: NDArray[Any]) -> str:
    """The name of the attack that is right most often about each part of the reference models, taught by the others."""
    from sklearn.model_selection import StratifiedKFold

    names = [name for name in ATTACKS if ATTACKS[name] is not pairwise_ratios or lesson.confidences.shape[1]]
    if np.bincount(world).min() < FOLDS:
        return names[0]
    right = {name: np.zeros(len(world)) for name in names}
    for teaching, asked in StratifiedKFold(FOLDS).split(np.zeros(len(world)), world):
        for name in names:
            logs = ATTACKS[name](lesson.take(teaching), world[teaching], lesson.take(asked))
            right[name][asked] = np.argmax(logs + np.log(prior), axis=1) == world[asked]
    best = max(names, key=lambda name: float(right[name].sum()))
    gain = right[best] - right[names[0]]
    return best if gain.sum() > SURER * np.sqrt((gain**2).sum()) else names[0]


def _standardised(lesson: NDArray[Any], asked: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean 0 and deviation 1 in the lesson."""
    centre, deviation = lesson.mean(axis=0), lesson.std(axis=0)
    scale = np.where(deviation > 0.0, deviation, 1.0)
    return (lesson - centre) / scale, (asked - centre) / scale


def _own_gaussians(lesson: NDArray[Any], world: NDArray[Any], asked: NDArray[Any]) -> NDArray[Any]:
    """The log-density of each world's Gaussian, whose covariance is shrunk as Ledoit and Wolf (2004) say."""
    from sklearn.covariance import ledoit_wolf

    known, unknown = _standardised(lesson, asked)
    logs = []
    for number in range(int(world.max()) + 1):
        own = known[world == number]
        centre = own.mean(axis=0)
        covariance = ledoit_wolf(own - centre, assume_centered=True)[0]
        spread, axes = np.linalg.eigh(covariance)
        spread = np.maximum(spread, 1e-6)  # of the unit: a feature that is constant in one world decides nearly alone
        away = (unknown - centre) @ axes
        logs.append(-0.5 * ((away**2 / spread).sum(axis=1) + np.log(spread).sum()))
    return np.stack(logs, axis=1)


def _beaten(ratios: NDArray[Any], candidates: int) -> NDArray[Any]:
    """For each model and candidate, the log-odds of the share of the population that the candidate beats."""
    population = ratios[:, None, candidates:]
    beaten = (ratios[:, :candidates, None] >= population).sum(axis=2)
    return np.asarray(logit((beaten + 0.5) / (population.shape[2] + 1.0)))

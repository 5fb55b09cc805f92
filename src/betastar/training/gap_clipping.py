"""Gap clipping (theory, section 9): each record's gradient is pulled towards its mean over the values of the secret.

With ḡ(a) the clipped gradient of a record that holds the value a, and v = Σ_a share_a ḡ(a), which does not depend on the value,
    ĝ(s) = v + clip(ḡ(s) - v, r/2)
stays within r/2 of v, so that any two values are at most r apart; it is a mean of the ḡ(a), so that its norm is at most 1.
What is computed are the weights of the ḡ(a) in ĝ(s).

Several secrets, each with a gap r_j of its own, are pulled one after the other on the table of all combinations of their values.
Lemma. Let |u - u'| ≤ r, |v - v'| ≤ r and F(u, v) = v + clip(u - v, ρ). Then |F(u, v) - F(u', v')| ≤ √2 r.
Proof. On the line between the two, dF = (I - J) dv + J du with J the derivative of clip at u - v: symmetric, with eigenvalues λ
in [0, 1] (clip is the projection onto a ball). As (1 - λ)² + λ² ≤ 1, |dF|² ≤ |du|² + |dv|² ≤ 2r². ∎
So pulling for another secret widens the gap of an earlier one by √2 at most (its mean v moves by at most r, too), and the j-th of
k secrets is clipped to r_j / 2 / √2^(k-1-j). Pulling with A₁ + A₂ instead of A₁·A₂ variants is not possible: the mean over the
values of one secret still moves with the other one, by any amount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from betastar import validation
from betastar.analyze import analyze
from betastar.calibrate import enforced
from betastar.display import Display
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnSteps
from betastar.risk import Risk
from betastar.rounding import down, plain
from betastar.threats import FARTHEST, AttributeInference, Membership
from betastar.training import attaching, processes
from betastar.training.attaching import MeasuredTraining
from betastar.training.batch_capture import BatchCapture, CapturedBatch, Criterion, too_many
from betastar.training.checks.step_checks import BROKEN_PROMISES, StepChecks
from betastar.training.gradients.distances import taken
from betastar.training.gradients.factors import ROUNDING, Gradients, Sketches, clip
from betastar.training.gradients.side_effects import GradientError
from betastar.training.gradients.variant_gradients import require_finite
from betastar.training.opacus.adapter import OpacusAdapter, ProvidedSums
from betastar.training.records import Records
from betastar.training.saved_training import SavedTraining, gap_display, gap_files
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source


def weights_at_once(gradients: Gradients, own: Tensor, shares: Tensor, gap: float) -> Tensor:
    """Of the variants' clipped gradients in ĝ, (n, a). own: the value that each record holds. shares: of the mean, (n, a)."""
    away = functional.one_hot(own, shares.shape[1]).to(shares) - shares
    return shares + _shrink(gradients.squares(away), 0.5 * gap)[:, None] * away


def written_sum(gradients: Gradients, own: Tensor, shares: Tensor, gap: float) -> dict[Tensor, Tensor]:
    """Σ_records ĝ for each parameter, in double precision, from v and ḡ(s) - v that are written out.

    v is computed alike whichever value a record holds, and ḡ(s) - v is clipped by the norm of its written entries. Rounding
    before that does not widen the gap.
    """
    parts, squares = [], torch.zeros(len(own), dtype=torch.float64, device=own.device)
    for factor in gradients.factors:  # one after the other, so that they are in the processor's cache
        one = Gradients((factor.widened(),))
        mean = one.combine(shares)
        away = one.pick(own).combine(torch.ones_like(shares[:, :1])) - mean
        squares += away.norms()
        parts.append((one, mean, away))
    shrink = _shrink(squares, 0.5 * gap)
    return {p: total for one, mean, away in parts for p, total in one.sums(mean.plus_multiple(away, shrink)).items()}


def weights_in_turn(gradients: Gradients, own: Tensor, shares: Sequence[Tensor], gaps: Sequence[float]) -> Tensor:
    """The same for several secrets; the values of the last one vary fastest among the variants. shares: one (n, a_j) a secret."""
    double = gradients.double()
    products = double.cross(double)
    largest = double.norms.amax(dim=1)[:, None]
    sizes = [share.shape[1] for share in shares]
    count = products.shape[1]

    def rows(stage: int, index: Tensor) -> Tensor:
        """Weights of the gradients of these variants after the secrets up to `stage`: (n, m) -> (n, m, count)."""
        if stage < 0:
            return functional.one_hot(index, count).to(products)
        size, stride = sizes[stage], int(torch.tensor(sizes[stage + 1 :]).prod())
        digit = index // stride % size
        every = (index - digit * stride)[..., None] + stride * torch.arange(size, device=index.device)
        earlier = rows(stage - 1, every.flatten(1)).unflatten(1, (index.shape[1], size))
        mean = torch.einsum("nmsc,ns->nmc", earlier, shares[stage])
        away = earlier.gather(2, digit[..., None, None].expand(-1, -1, 1, count))[:, :, 0] - mean
        squares = (torch.bmm(away, products) * away).sum(dim=2).clamp(min=0.0) + ROUNDING * largest
        radius = 0.5 * gaps[stage] / 2.0 ** (0.5 * (len(gaps) - 1 - stage))
        return mean + _shrink(squares, radius)[..., None] * away

    return rows(len(gaps) - 1, own[:, None])[:, 0]


def _shrink(squares: Tensor, radius: float) -> Tensor:
    """The factor that clips vectors with these squared norms."""
    norms = squares.sqrt()
    return torch.where(norms <= radius, 1.0, radius / norms)


# ---- The sum of gap-clipped gradients over a batch, computed from the gradients of all variants of its records.

#: Bytes that one pair of combinations of several secrets' values takes: their inner product and their weights.
PER_PAIR = 32
#: Bytes that one entry of a record's written mean and of its difference from the mean take.
WRITTEN = 12


def clipped_secrets(secrets: Sequence[Secret], gaps: Mapping[str, float]) -> list[Secret]:
    """The secrets whose gap is below 2, with the largest gap first.

    The last secret is clipped to its gap, and earlier ones to less, so that the smallest gap comes last.
    """
    return sorted((secret for secret in secrets if gaps[secret.name] < FARTHEST), key=lambda secret: -gaps[secret.name])


@dataclass(frozen=True)
class GapClippedTotals:
    """Sums over the records of a batch for each parameter.

    Attributes
    ----------
    clipped : dict
        Σ ĝ, in double precision.
    unclipped : dict
        The sketch of the sum of the records' own gradients before any clipping.
    """

    clipped: dict[Tensor, Tensor]
    unclipped: dict[Tensor, Tensor]


class GapClippedSum:
    """Computes Σ ĝ, the sum that gap clipping adds noise to (theory, section 9).

    Parameters
    ----------
    training : MeasuredTraining
        The training. Its secret is the joint one of all secrets that are clipped.
    secrets : sequence of Secret
        The secrets that are clipped, as `clipped_secrets` orders them. It is empty for plain DP-SGD.
    gaps : mapping
        The gap of each secret by its name, in clipping norms.

    Raises
    ------
    ValueError
        If the secret has more values than fit into memory.
    """

    def __init__(self, training: MeasuredTraining, secrets: Sequence[Secret], gaps: Mapping[str, float]) -> None:
        self._adapter, self._variants, self._distances = training.adapter, training.variants, training.distances
        self.secret, self._secrets, self._memory = training.secret, list(secrets), training.memory
        #: Makes the sketches of sums of own gradients.
        self.sketches = Sketches()
        self._gaps = [gaps[secret.name] for secret in self._secrets]
        fit = self._distances.most if len(self._secrets) < 2 else min(self._distances.most, isqrt(self._memory // PER_PAIR))
        if self.secret.count > fit:
            raise ValueError(
                f"the secret {self.secret.name!r} has {self.secret.count} values or combinations of them, of which {fit} fit "
                f"into {self._memory} bytes: raise memory, join values into ranges, or protect fewer secrets at a time."
            )

    def total(self, batch: Records) -> GapClippedTotals:
        """Add up the gap-clipped gradients of some records, and their own gradients.

        Parameters
        ----------
        batch : Records
            The records.

        Returns
        -------
        GapClippedTotals
            Both sums for each parameter.
        """
        parameters, norm = self._adapter.all_parameters, self._adapter.max_grad_norm()
        clipped: dict[Tensor, Tensor] = {p: torch.zeros_like(p, dtype=torch.float64) for p in parameters}
        unclipped: dict[Tensor, Tensor] = {}
        for total, mine in self._parts(batch):
            for parameter, part in total.items():
                clipped[parameter].add_(part, alpha=norm)
            for parameter, sketch in self.sketches.of_sum(mine).items():
                unclipped[parameter] = unclipped.get(parameter, 0.0) + sketch
        return GapClippedTotals(clipped, unclipped)

    def _parts(self, batch: Records) -> Iterator[tuple[dict[Tensor, Tensor], Gradients]]:
        """Σ ĝ of some records in clipping norms, and their own gradients. What the secret is not about has no gap to clip."""
        concerned = self.secret.concerned(batch)
        for part in self._chunks(taken(batch, concerned)):
            gradients = self._variants.gradients(part, self.secret, range(self.secret.count))
            own = self.secret.own(part).to(gradients.norms.device)
            yield self._sum(gradients, own, part), gradients.whole(own)
        for part in self._distances.chunks(taken(batch, ~concerned)):
            mine = require_finite(self._variants.own(part))
            yield clip(mine, self._adapter).totals(torch.ones_like(mine.norms)), mine

    def _sum(self, gradients: Gradients, own: Tensor, records: Records) -> dict[Tensor, Tensor]:
        """Σ ĝ in clipping norms."""
        if gradients.tiled and len(self._secrets) == 1:
            shares = self._secrets[0].shares(records).to(own.device)
            return written_sum(gradients, own, shares, self._gaps[0])
        return gradients.totals(self.weights(gradients, own, records))

    def weights(self, gradients: Gradients, own: Tensor, records: Records) -> Tensor:
        """The weight of each variant in ĝ, if the records held the values `own`."""
        shares = [secret.shares(records).to(own.device) for secret in self._secrets]
        if not shares:
            return functional.one_hot(own, self.secret.count).double()
        if len(shares) == 1:
            return weights_at_once(gradients, own, shares[0], self._gaps[0])
        return weights_in_turn(gradients, own, shares, self._gaps)

    def _chunks(self, batch: Records) -> Iterator[Records]:
        """Parts of the batch whose variants, and whose written means and differences from them, fit into memory."""
        entries = sum(p.numel() for p in self._adapter.parameters)
        each = self._distances.bytes_of(self.secret.count) + WRITTEN * entries
        if len(self._secrets) > 1:
            each += PER_PAIR * self.secret.count**2
        return self._distances.chunks(batch, self._memory // each)


# ---- The optimizer: gaps that each step keeps, and what is promised because of it.


class GapClipping(SavedTraining):
    """Clips the gaps of an optimizer's steps, and says what is promised because of it.

    Opacus neither computes nor clips gradients of single records: gap clipping does both, from one pass over all variants of the
    batch. `make_attribute_private` makes it, and it is then `optimizer.gap_clipping`.

    Parameters
    ----------
    adapter : OpacusAdapter
        The training, with the accountant of its engine.
    criterion : callable
        The loss that the training loop calls.
    secrets : sequence of Secret
        The secrets that are protected.
    gaps : sequence of float
        The gap of each secret, in clipping norms.
    source : Source
        The records of the data set.
    memory : int, optional
        The number of bytes that gap clipping may take beyond a step of Opacus.

    Raises
    ------
    ValueError
        If the training cannot be clipped; the message says why.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from betastar.training import Secret, make_attribute_private
    >>> module = torch.nn.Linear(2, 2)
    >>> _, optimizer, _ = make_attribute_private(
    ...     module=module,
    ...     optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(TensorDataset(torch.eye(2).repeat(20, 1), torch.arange(40) % 2), batch_size=4),
    ...     criterion=torch.nn.CrossEntropyLoss(),
    ...     secret=Secret.one_hot([0, 1], name="group"),
    ...     noise_multiplier=2.0,
    ...     max_grad_norm=1.0,
    ...     gap=0.1,
    ... )
    >>> print(optimizer.gap_clipping.promise(steps=100))  # doctest: +ELLIPSIS
    Proved in advance: whoever sees all 100 updates, and knows everything of a record but its group, faces β* ≥ 0.9... (gap 0.1).
    """

    def __init__(
        self,
        adapter: OpacusAdapter,
        criterion: Criterion,
        secrets: Sequence[Secret],
        gaps: Sequence[float],
        source: Source,
        memory: int | None,
    ) -> None:
        self._adapter = adapter
        #: The gap of each secret by its name, in clipping norms.
        self.gaps = {secret.name: float(gap) for secret, gap in zip(secrets, gaps, strict=True)}
        #: The number of values of each secret.
        self.counts = {secret.name: secret.count for secret in secrets}
        clipped = clipped_secrets(secrets, self.gaps)
        every = clipped or list(secrets[:1])
        self._secret = every[0] if len(every) == 1 else Secret.joint(*every)
        training = attaching.prepare(adapter, source, criterion, self._secret, "exact", memory, "batch")
        self._variants = training.variants
        #: Computes the sums that noise is added to.
        self.clipped_sum = GapClippedSum(training, clipped, self.gaps)
        self._checks = StepChecks(adapter, source, proves=True, follow_records=True)
        self._capture = BatchCapture(adapter, criterion, source)
        self._steps = DrawnSteps()
        self._broken = False  # whether part of a logical batch has failed
        self._provided_sums = ProvidedSums(adapter)
        adapter.around_step(self._step)

    @property
    def criterion(self) -> Criterion:
        """The loss to call in the training loop if the criterion is a plain function; a module is returned as it is."""
        return self._capture.criterion

    # ------------------------------------------------------------------ while training

    def _step(self, take: Callable[[], bool]) -> bool:
        """Clip the gaps of one batch, and check the step. `take` lets Opacus add noise, and returns whether a step is taken."""
        if self._broken:
            raise RuntimeError("part of a logical batch failed, and its records may be used twice: start from a checkpoint.")
        with self._checks.voiding(*BROKEN_PROMISES):
            try:
                captured = self._batch()
                batch = captured.records
                self._checks.require(len(self._steps))
                with self._variants.dropout_of(batch, captured.draws) as numbered:
                    totals = self.clipped_sum.total(numbered)
                self._require_same_gradient(len(batch), totals.unclipped)
            except BaseException:
                self._broken = self._adapter.inside_logical_batch()
                raise
            self._checks.batch(batch)
            drawn, noise = self._adapter.drawn(), self._adapter.noise_multiplier()
            deviation = noise * self._adapter.max_grad_norm()
            self._provided_sums.provide(totals.clipped, len(batch))
            taken = take()
            self._provided_sums.require_used()
            if taken:
                self._checks.added(drawn, deviation)
        if taken:
            self._steps.add(noise, drawn)
        return taken

    def _batch(self) -> CapturedBatch:
        """The batch that the loop has run the model on since the last step."""
        batches = self._capture.take()
        if len(batches) > 1:
            raise too_many(len(batches))
        if self._adapter.hooks_are_enabled:
            raise RuntimeError("the hooks of the model were enabled: gap clipping does without them; call model.disable_hooks().")
        return batches[0]

    def _require_same_gradient(self, records: int, sketches: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Refuse a batch whose gradient, as the loop has computed it, is not that of the criterion, whose sketch is given."""
        if processes.together() and type(self._adapter.outer) is nn.parallel.DistributedDataParallel:
            return  # the gradients of the loop are then those of all processes
        if not records:
            return
        scale = records if self._adapter.loss_reduction == "mean" else 1
        grads = {p: torch.zeros_like(p) if p.grad is None else p.grad for p in sketches}
        here = torch.cat([sketch / scale for sketch in sketches.values()])
        there = torch.cat([self.clipped_sum.sketches.of(p, grad) for p, grad in grads.items()])
        if not there.any() and here.any():
            raise GradientError("no gradient was back-propagated before optimizer.step(): call loss.backward() first.")
        if float((here - there).norm()) > 1e-2 * float(here.norm()) + 1e-6:
            raise GradientError(
                f"the loop's gradient has norm {float(there.norm()):.4g}, but the criterion gives {float(here.norm()):.4g}: the "
                "loss that is back-propagated is not the criterion's (scaled? a second term?), or gradients were not zeroed. "
                "Put all into one function of (output, target), pass it as criterion, and call optimizer.gap_clipping.criterion."
            )

    def accept_weights(self) -> None:
        """Declare that the weights were changed since the last step by a function of weights of earlier steps alone.

        Averaging weights, going back to earlier ones and projecting them reveal nothing new about the records. A further step on
        gradients of records does, and must not be declared.
        """
        self._checks.accept_weights()

    # ------------------------------------------------------------------ answers

    @property
    def run(self) -> DPSGD:
        """Noise, sampling and number of the steps so far. Raises `NotProved` if a step was taken without these gaps."""
        self._checks.require(len(self._steps))
        return self._steps.run

    def distance(self, secret: str | None = None) -> float:
        """Give the largest distance that two values of a secret can have at any step, rounded outward.

        Parameters
        ----------
        secret : str, optional
            The name of the secret, if there are several.

        Returns
        -------
        float
            In clipping norms.

        Raises
        ------
        ValueError
            If there is no such secret, or several and none is named.
        """
        names = list(self.gaps)
        if secret is None and len(names) > 1:
            raise ValueError(f"secret must be one of {', '.join(map(repr, names))}: each has a gap of its own.")
        name = names[0] if secret is None else validation.choice("secret", secret, names)
        return enforced(self.gaps[name])

    def risk(self, secret: str | None = None, method: str = "certified", steps: int | None = None) -> Risk:
        """Analyse attribute inference. The answer does not depend on the data and is known before training.

        Parameters
        ----------
        secret : str, optional
            The name of the secret, if there are several.
        method : str
            As in `betastar.analyze`.
        steps : int, optional
            Analyse so many steps with the current noise and rate; by default the steps so far.

        Returns
        -------
        Risk
            The risk of each record.

        Raises
        ------
        NotProved
            If a step was taken without these gaps.
        ValueError
            If there is no such secret, or if no step was taken yet and `steps` is not given.
        """
        return analyze(self._run(steps), AttributeInference(self.distance(secret)), method)

    def membership(self, relation: str = "substitution", method: str = "certified", steps: int | None = None) -> Risk:
        """Analyse membership inference against the same steps, which gap clipping does not change.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.
        method : str
            As in `betastar.analyze`.
        steps : int, optional
            Analyse so many steps with the current noise and rate; by default the steps so far.

        Returns
        -------
        Risk
            The risk of each record.

        Raises
        ------
        NotProved
            If a step was taken without these gaps.
        ValueError
            If no step was taken yet and `steps` is not given.
        """
        return analyze(self._run(steps), Membership(relation), method)

    def _run(self, steps: int | None) -> DPSGD:
        return self.run if steps is None else self._adapter.drawn().scheme.run(self._adapter.noise_multiplier(), steps)

    def promise(self, steps: int | None = None) -> str:
        """Say what may be published, in one sentence for each secret.

        Parameters
        ----------
        steps : int, optional
            Promise so many steps with the current noise and rate; by default the steps so far.

        Returns
        -------
        str
            The sentences, one a line.

        Raises
        ------
        NotProved
            If a step was taken without these gaps.
        ValueError
            If no step was taken yet and `steps` is not given.
        """
        run = self._run(steps)
        lines = []
        for name, gap in self.gaps.items():
            beta = float(self.risk(name, steps=steps).bayes_security.lower)
            lines.append(
                f"Proved in advance: whoever sees all {int(run.steps)} updates, and knows everything of a record but its {name}, "
                f"faces β* ≥ {down(beta)} (gap {plain(gap)})."
            )
        return "\n".join(lines)

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Give the state of gap clipping, to be saved next to the accountant's.

        Returns
        -------
        dict
            A training that is made alike goes on after `load_state_dict`.
        """
        return {"made": self._made(), "steps": self._steps.state_dict(), "checks": self._checks.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. Load the model's state and the accountant's as well.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.

        Raises
        ------
        ValueError
            If the state belongs to other gaps, secrets, noise, sampling rate or clipping norm.
        """
        for name, mine in self._made().items():
            theirs = state["made"].get(name)
            if theirs != mine:
                raise ValueError(f"the state belongs to another training: its {name} is {theirs!r}, not {mine!r}.")
        self._steps.load_state_dict(state["steps"])
        self._checks.load_state_dict(state["checks"], len(self._steps))

    def _made(self) -> dict[str, object]:
        """What a saved state must have been made with."""
        return {
            "gaps": dict(self.gaps),
            "secret": self._secret.digest(),
            "noise_multiplier": self._adapter.noise_multiplier(),
            "sampling": asdict(self._adapter.drawn().scheme),
            "max_grad_norm": self._adapter.settings()[:2],
        }

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return len(self._steps)

    def _files(self) -> Mapping[str, str]:
        return gap_files(self)

    def _display(self, brief: bool) -> Display:
        return gap_display(self, brief)

    def __repr__(self) -> str:
        gaps = ", ".join(f"{name!r}: {plain(gap)}" for name, gap in self.gaps.items())
        return f"GapClipping({gaps}, {self.steps} {'step' if self.steps == 1 else 'steps'})"

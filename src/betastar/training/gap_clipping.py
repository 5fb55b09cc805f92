"""make_attribute_private: DP-SGD whose risk of attribute inference is a number that one picks before training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional

from betastar import validation
from betastar.risk.analyze import analyze
from betastar.risk.calibrate import Target
from betastar.risk.plan import enforced, plan
from betastar.risk.risk import Risk
from betastar.rounding import down, plain
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import FARTHEST, AttributeInference, Membership
from betastar.training import attaching, processes
from betastar.training.batch_capture import BatchCapture, too_many
from betastar.training.checks.precision import require_precision
from betastar.training.checks.step_checks import BROKEN_PROMISES, StepChecks
from betastar.training.gradients import gap_weights
from betastar.training.gradients.distances import RecordDistances
from betastar.training.gradients.side_effects import GradientError
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.opacus.accountant import run_of
from betastar.training.opacus.adapter import OpacusAdapter, loss_of
from betastar.training.opacus.provided_sums import ProvidedSums
from betastar.training.records import Records, Source, pair
from betastar.training.secrets.secret import Secret

#: Bytes that one combination of several secrets' values takes: inner products and weights of it with each other one.
PER_PAIR = 32


def make_attribute_private(
    *,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: Any,
    criterion: Callable[..., Any],
    secret: Secret | Sequence[Secret],
    noise_multiplier: float,
    max_grad_norm: float | list[float],
    gap: float | Sequence[float] | None = None,
    bayes_security: float | Sequence[float] | None = None,
    epochs: int | None = None,
    engine: PrivacyEngine | None = None,
    clipping: str = "flat",
    loss_reduction: str = "mean",
    noise_generator: torch.Generator | None = None,
    split: Callable[[Any], Records] = pair,
    memory: int = 1 << 27,
) -> tuple[Any, Any, Any]:
    """Like `make_private` of Opacus, and a secret's values are at most `gap` apart at every step: (model, optimizer, loader).

    The loop stays as it is. What is promised, and to whom, is `optimizer.gap_clipping` (a `GapClipping`).

    secret: as for a monitor, or several of them, each with its own gap; `Secret.joint(...)` protects several together.
    gap: in clipping norms, 0…2; 2 is plain DP-SGD, 0 trains on the attribute averaged out. Instead of it, bayes_security and
    epochs: the β* against attribute inference that is to hold after so many epochs, from which the gap is calibrated.
    criterion: the loss that the loop calls as criterion(model(inputs), target); for a plain function, call
    `optimizer.gap_clipping.criterion` in the loop instead of it. engine: whose accountant keeps the steps (default: a new one
    with betastar's accountant). split: batch of the loader -> Records, if batches are not (inputs, target, ...).
    memory: bytes for the factors of one chunk.
    """
    secrets = [secret] if isinstance(secret, Secret) else list(secret)
    if not secrets or not all(isinstance(one, Secret) for one in secrets):
        raise TypeError(f"secret must be a Secret or several of them, got {secret!r}.")
    _refuse_overlap(secrets)
    if not callable(criterion):
        raise TypeError(f"criterion must be callable, got {criterion!r}.")
    if (gap is None) == (bayes_security is None):
        raise TypeError(f"give gap, or bayes_security with epochs, not both: got gap={gap!r}, bayes_security={bayes_security!r}.")
    if (bayes_security is None) != (epochs is None):
        raise TypeError(f"epochs belongs to bayes_security, and to it only: got {epochs!r} with {bayes_security!r}.")
    gaps = [] if gap is None else _one_each("gap", gap, secrets)
    for value in gaps:
        validation.numbers("gap", value, "between 0 and 2 (units of the clipping norm)", low=0.0, high=FARTHEST)
    wanted = [] if bayes_security is None else _one_each("bayes_security", bayes_security, secrets)
    targets = [Target(bayes_security=value) for value in wanted]
    engine = PrivacyEngine(accountant="betastar") if engine is None else engine
    model, private, loader = engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=data_loader,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        clipping=clipping,
        loss_reduction=loss_reduction,
        noise_generator=noise_generator,
    )
    adapter = OpacusAdapter(model, private, loader, accountant=engine.accountant)
    if targets:
        run = DPSGD(noise_multiplier, adapter.sample_rate(), validation.whole("epochs", epochs) * len(loader))
        gaps = [plan(attribute=target, run=run).gap for target in targets]
    source = Source(loader.dataset, loader.collate_fn, split, adapter.device)
    private.gap_clipping = GapClipping(adapter, criterion, secrets, gaps, source, engine.accountant, memory)
    return model, private, loader


def _refuse_overlap(secrets: list[Secret]) -> None:
    """Several secrets must be independent parts of a record: else changing the one changes the other."""
    seen: set[Any] = set()
    for number, one in enumerate(secrets):
        if one.name in [other.name for other in secrets[:number]]:
            raise ValueError(f"secret must be several with different names, got {[other.name for other in secrets]}.")
        places = one.places()
        if len(secrets) > 1 and (places is None or places & seen):
            what = "is a function of the whole record" if places is None else "shares columns with another one"
            raise ValueError(
                f"secret must be several in different places of a record, but {one.name!r} {what}; use Secret.joint."
            )
        seen |= places or set()


def _one_each(name: str, given: Any, secrets: list[Secret]) -> list[float]:
    numbers = list(given) if np.ndim(given) else [given] * len(secrets)
    if len(numbers) != len(secrets):
        raise ValueError(f"{name} must be one number, or one for each of the {len(secrets)} secrets, got {given!r}.")
    return numbers


class GapClipping:
    """What keeps the gaps of an optimizer's steps, and what is promised because of it.

    Opacus neither computes nor clips gradients of single records: this does, from one pass over all variants of the batch.
    """

    def __init__(
        self,
        adapter: OpacusAdapter,
        criterion: Callable[..., Any],
        secrets: Sequence[Secret],
        gaps: Sequence[float],
        source: Source,
        accountant: Any,
        memory: int,
    ) -> None:
        self._adapter, self._accountant = adapter, accountant
        self._memory = validation.whole("memory", memory, low=1 << 20)
        self.gaps = {secret.name: float(gap) for secret, gap in zip(secrets, gaps, strict=True)}
        # The last one is clipped to its gap, earlier ones to less: the smallest gap comes last.
        self._secrets = sorted((s for s in secrets if self.gaps[s.name] < FARTHEST), key=lambda s: -self.gaps[s.name])
        every = self._secrets or list(secrets[:1])
        self._secret = every[0] if len(every) == 1 else Secret.joint(*every)
        loss = loss_of(criterion)
        attaching.reduction(loss, adapter.loss_reduction)
        require_precision(adapter.parameters)
        self._variants = VariantGradients(adapter, loss)
        self._distances = RecordDistances(self._variants, self._secret, "exact", range(self._secret.count), self._memory)
        attaching.dry_run(adapter, source, self._secret, loss, self._variants, self._distances, "batch")
        self._refuse_too_many()
        self._checks = StepChecks(adapter, source, proves=True, follow_records=True)
        self._capture = BatchCapture(adapter, criterion, source)
        self._steps = 0
        self._broken = False
        self._provided_sums = ProvidedSums(adapter)
        adapter.around_step(self._step)

    @property
    def criterion(self) -> Callable[..., Any]:
        """To be called in the loop if the criterion is a plain function."""
        return self._capture.criterion

    # ------------------------------------------------------------------ while training

    def _step(self, take: Callable[[], bool]) -> bool:
        """Clip the gaps of one batch, and check the step. take: lets Opacus add noise, and returns whether a step is taken."""
        if self._broken:
            raise RuntimeError("part of a logical batch failed, and its records may be used twice: start from a checkpoint.")
        with self._checks.voiding(*BROKEN_PROMISES):
            try:
                batch = self._batch()
                self._checks.require(self._steps)
                sums = self.total(batch)
                self._compare(batch)
            except BaseException:
                self._broken = self._adapter.inside_logical_batch()
                raise
            self._checks.batch(batch)
            rate, deviation = self._adapter.sample_rate(), self._adapter.noise_multiplier() * self._adapter.max_grad_norm()
            self._provided_sums.provide(sums, len(batch))
            taken = take()
            self._provided_sums.require_used()
            if taken:
                self._checks.added(rate, deviation)
        self._steps += taken
        return taken

    def _batch(self) -> Records:
        batches = self._capture.take()
        if len(batches) > 1:
            raise too_many(len(batches))
        if self._adapter.hooks_are_enabled:
            raise RuntimeError("the hooks of the model were enabled: gap clipping does without them; call model.disable_hooks().")
        return batches[0]

    def total(self, batch: Records) -> dict[Tensor, Tensor]:
        """Σ ĝ over some records, for each parameter, in double precision."""
        sums = {p: torch.zeros_like(p, dtype=torch.float64) for p in self._adapter.all_parameters}
        for part in self._chunks(batch):
            gradients, _, weights = self.weigh(part)
            for parameter, total in gradients.totals(weights).items():
                sums[parameter] += total * self._adapter.max_grad_norm()
        return sums

    def weigh(self, records: Records) -> tuple[Any, Tensor, Tensor]:
        """(clipped gradients of the records' variants, the value that each record holds, weights of the variants in ĝ)."""
        gradients = self._variants.gradients(records, self._secret, range(self._secret.count))
        device = gradients.norms.device
        own = self._secret.own(records).to(device)
        return gradients, own, self._weights(gradients, own, records)

    def _weights(self, gradients: Any, own: Tensor, records: Records) -> Tensor:
        gaps = [self.gaps[secret.name] for secret in self._secrets]
        shares = [secret.shares(records).to(own.device) for secret in self._secrets]
        if not gaps:
            return functional.one_hot(own, self._secret.count).double()
        if len(gaps) == 1:
            return gap_weights.weights(gradients, own, shares[0], gaps[0])
        return gap_weights.weights_in_turn(gradients, own, shares, gaps)

    def _chunks(self, batch: Records) -> Iterator[Records]:
        size = self._distances.room // self._secret.count
        if len(self._secrets) > 1:
            size = min(size, self._memory // (PER_PAIR * self._secret.count**2))
        for start in range(0, len(batch), max(1, size)):
            yield batch.take(slice(start, start + max(1, size)))

    def _refuse_too_many(self) -> None:
        fit = self._distances.most
        if len(self._secrets) > 1:
            fit = min(fit, isqrt(self._memory // PER_PAIR))
        if self._secret.count > fit:
            raise ValueError(
                f"the secret {self._secret.name!r} has {self._secret.count} values or combinations of them, of which {fit} fit "
                f"into memory={self._memory} bytes: raise memory, join values into ranges, or protect fewer secrets at a time."
            )

    def _compare(self, batch: Records) -> None:
        """That what was back-propagated is what is repeated here."""
        if processes.together() and type(self._adapter.outer) is nn.parallel.DistributedDataParallel:
            return  # its gradients are those of all processes
        if not len(batch):
            return
        own = self._variants.own(batch)
        plain = own.totals(torch.ones_like(own.norms))
        scale = len(batch) if self._adapter.loss_reduction == "mean" else 1
        here = torch.cat([total.flatten() / scale for total in plain.values()])
        there = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in plain]).to(here)
        if not there.any() and here.any():
            raise GradientError("no gradient was back-propagated before optimizer.step(): call loss.backward() first.")
        if float((here - there).norm()) > 1e-2 * float(here.norm()) + 1e-6:
            raise GradientError(
                f"the loop's gradient has norm {float(there.norm()):.4g}, but the criterion gives {float(here.norm()):.4g}: the "
                "loss that is back-propagated is not the criterion's (scaled? a second term?), or gradients were not zeroed. "
                "Put all into one function of (output, target), pass it as criterion, and call optimizer.gap_clipping.criterion."
            )

    # ------------------------------------------------------------------ answers

    @property
    def run(self) -> DPSGD:
        """Noise, rate and number of steps so far; all of them must have been taken with these gaps."""
        self._checks.require(self._steps)
        return run_of(self._accountant)

    def accept_weights(self) -> None:
        """Declare that the weights were changed since the last step by a function of weights of earlier steps alone."""
        self._checks.accept_weights()

    def state_dict(self) -> dict[str, Any]:
        """To be saved next to the accountant's."""
        return {"made": self._made(), "steps": self._steps, "checks": self._checks.state_dict()}

    def _made(self) -> dict[str, Any]:
        return {
            "gaps": dict(self.gaps),
            "secret": self._secret.digest(),
            "noise_multiplier": self._adapter.noise_multiplier(),
            "sample_rate": self._adapter.sample_rate(),
            "max_grad_norm": self._adapter.settings()[:2],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, mine in self._made().items():
            if state["made"].get(name) != mine:
                raise ValueError(
                    f"the state belongs to another training: its {name} is {state['made'].get(name)!r}, not {mine!r}."
                )
        self._steps = int(state["steps"])
        self._checks.load_state_dict(state["checks"], self._steps)

    def distance(self, secret: str | None = None) -> float:
        """How far apart two values of a secret (by its name) can be at any step, rounded outward."""
        names = list(self.gaps)
        if secret is None and len(names) > 1:
            raise ValueError(f"secret must be one of {', '.join(map(repr, names))}: each has a gap of its own.")
        name = names[0] if secret is None else validation.choice("secret", secret, names)
        return enforced(self.gaps[name])

    def risk(self, secret: str | None = None, method: str = "certified", steps: int | None = None) -> Risk:
        """Attribute inference against the run so far, or against as many steps like its next one; known in advance."""
        return analyze(self._run(steps), AttributeInference(self.distance(secret)), method)

    def membership(self, relation: str = "substitution", method: str = "certified", steps: int | None = None) -> Risk:
        """Membership inference against the same run: what it would be without gap clipping."""
        return analyze(self._run(steps), Membership(relation), method)

    def _run(self, steps: int | None) -> DPSGD:
        return self.run if steps is None else DPSGD(self._adapter.noise_multiplier(), self._adapter.sample_rate(), steps)

    def promise(self, steps: int | None = None) -> str:
        """What may be published, a sentence for each secret."""
        run = self._run(steps)
        lines = []
        for name, gap in self.gaps.items():
            beta = float(self.risk(name, steps=steps).bayes_security.lower)
            lines.append(
                f"Proved in advance: whoever sees all {int(run.steps)} updates, and knows everything of a record but its {name}, "
                f"faces β* ≥ {down(beta)} (gap {plain(gap)})."
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"GapClipping({', '.join(f'{name!r}: {plain(gap)}' for name, gap in self.gaps.items())})"

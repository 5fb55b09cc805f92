"""GapClipping: keeps the gaps of an optimizer's steps, and says what is promised because of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from betastar import validation
from betastar.analyze import analyze
from betastar.calibrate import enforced
from betastar.display import Display
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnSteps
from betastar.risk import Risk
from betastar.rounding import down, plain
from betastar.threats import AttributeInference, Membership
from betastar.training import attaching, processes
from betastar.training.batch_capture import BatchCapture, CapturedBatch, Criterion, too_many
from betastar.training.checks.step_checks import BROKEN_PROMISES, StepChecks
from betastar.training.gap_clipped_sum import GapClippedSum, clipped_secrets
from betastar.training.gradients.side_effects import GradientError
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.opacus.provided_sums import ProvidedSums
from betastar.training.saved_training import SavedTraining, gap_display, gap_files
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source


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
        values = range(self._secret.count)
        training = attaching.prepare(adapter, source, criterion, self._secret, values, "exact", memory, "batch")
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

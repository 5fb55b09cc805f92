"""AttributeMonitor: attribute-inference risk while a model trains with Opacus. The training loop stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from betastar import validation
from betastar.arrays import Real
from betastar.risk.risk import Risk
from betastar.scenario.run import DPSGD
from betastar.training import attaching, processes
from betastar.training.batch_capture import BatchCapture, too_many
from betastar.training.budget import Budget, BudgetAccount, BudgetExhausted, Proof
from betastar.training.checks.gradients import GradientCheck
from betastar.training.checks.precision import require_precision
from betastar.training.checks.sampling import largest_batch
from betastar.training.checks.step_checks import NotProved, StepChecks
from betastar.training.gradients.distances import DIAMETERS, RecordDistances
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.history import SCOPES, History
from betastar.training.ledger import Ledger
from betastar.training.measurement import StepMeasurement
from betastar.training.opacus.adapter import OpacusAdapter, loss_of
from betastar.training.records import Records, Source, pair
from betastar.training.secrets.secret import Secret
from betastar.training.writers import Writer


class AttributeMonitor:
    """Measures, at each step, the largest distance between clipped gradients over the values of a secret.

    model, optimizer, loader: what `make_private` of Opacus returned. criterion: the loss that the loop calls as
    criterion(model(inputs), target); for a plain function, call `monitor.criterion` in the loop instead of it.

    scope: "batch" (the sampled records: cheap, an estimate) or "dataset" (all records at the current weights, before the step).
    diameter: "exact", "ball", "centroid" (the paper's approximation) or "extremes" (between two values only: no upper bound).
    extremes: labels of those two values. every: measure at every k-th step only.
    ledger: keep the leakage of each record (batch scope: tell whose records these are with `monitor.records(indices)`);
    a number k looks at single records at every k-th measured step only, which is cheaper.
    budget: stop before the step that would break it; needs dataset scope. writers: told of each step.
    split: batch of the loader -> Records, if batches are not (inputs, target, ...).
    amplification: False analyses a loader that is not Poisson as if every record took part in every step.
    accountant: of the PrivacyEngine, which counts the steps; needed with a budget where the optimizer's step hook was replaced.
    memory: bytes for the factors of one chunk.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loader: Any,
        criterion: Callable[..., Any],
        secret: Secret,
        *,
        scope: str = "batch",
        diameter: str = "exact",
        extremes: Sequence[Any] | None = None,
        every: int = 1,
        ledger: bool | int = False,
        budget: Budget | None = None,
        writers: Sequence[Writer] = (),
        split: Callable[[Any], Records] = pair,
        amplification: bool = True,
        accountant: Any = None,
        memory: int = 1 << 27,
    ) -> None:
        if not isinstance(secret, Secret):
            raise TypeError(f"secret must be a Secret, got {secret!r}.")
        if not callable(criterion):
            raise TypeError(f"criterion must be callable, got {criterion!r}.")
        if hasattr(optimizer, "gap_clipping"):
            raise ValueError(
                "optimizer clips gaps, which are thus known in advance: ask optimizer.gap_clipping. A monitor would measure "
                "gradients that are not used."
            )
        self.secret = secret
        self.scope = validation.choice("scope", scope, SCOPES)
        self.diameter = validation.choice("diameter", diameter, DIAMETERS)
        self.every = validation.whole("every", every)
        attaching.budget(budget, self.scope, self.diameter)
        self._ledger_every = self.every * validation.whole("ledger", int(ledger), low=0)
        self.writers = list(writers)
        self._adapter = OpacusAdapter(model, optimizer, loader, amplification, accountant)
        require_precision(self._adapter.parameters)
        self._loss = loss_of(criterion)
        attaching.reduction(self._loss, self._adapter.loss_reduction)
        self._source = Source(loader.dataset, loader.collate_fn, split, self._adapter.device)
        memory = validation.whole("memory", memory, low=1 << 20)
        self._variants = VariantGradients(self._adapter, self._loss)
        distances = RecordDistances(self._variants, secret, diameter, attaching.values(secret, diameter, extremes), memory)
        attaching.dry_run(self._adapter, self._source, secret, self._loss, self._variants, distances, self.scope)

        self.history = History(self.scope, self.diameter)
        self.ledger = Ledger(len(self._source), self.scope) if ledger or (budget and budget.per_record) else None
        self.budget_account = BudgetAccount(budget, len(self._source)) if budget else None
        self._indices: Tensor | None = None
        self._measurement = StepMeasurement(self._adapter, self._source, secret, distances)
        self._gradients = GradientCheck(self._adapter)
        self._capture = BatchCapture(self._adapter, criterion, self._source, lambda: self._adapter.hooks_are_enabled)
        self._checks = StepChecks(self._adapter, self._source, self.budget_account is not None, self.scope == "dataset")
        self._undo = self._adapter.around_step(self._step)

    def _step(self, take: Callable[[], bool]) -> bool:
        """Measure and check one step. take: lets Opacus clip and add noise, and returns whether a step is taken."""
        if not self._capture.attached:
            return take()
        with self._checks.voiding(Exception, except_for=BudgetExhausted):
            try:
                rate, noise, norm = self._before()
                taken = take()
                if taken:
                    self._gradients.summed()
                    self._checks.added(rate, noise * norm)
            except Exception:
                self._gradients.forget()
                raise
        if taken:
            self._commit(rate, noise)
        return taken

    @property
    def criterion(self) -> Callable[..., Any]:
        """To be called in the loop if the criterion is a plain function."""
        return self._capture.criterion

    def detach(self) -> None:
        """Stop listening; what was measured stays."""
        self._capture.detach()
        self._undo()

    def records(self, indices: Any) -> None:
        """Whose records the coming batch holds, for the ledger in batch scope; call it before the model is run."""
        if self.ledger is None:
            raise ValueError("the monitor keeps no ledger: make it with ledger=True.")
        self._indices = torch.as_tensor(indices).flatten()
        if len(self._indices) and not 0 <= int(self._indices.min()) <= int(self._indices.max()) < len(self._source):
            raise ValueError(f"indices must be between 0 and {len(self._source) - 1}, got {self._indices.tolist()[:5]}.")

    # ------------------------------------------------------------------ measuring

    def _forget(self) -> None:
        """Nothing is known of the coming step."""
        self._measurement.forget()
        self._gradients.forget()

    def _due(self) -> bool:
        return len(self.history) % self.every == 0

    def _one_by_one(self) -> bool:
        """Whether each record's own distance is wanted at this step."""
        if self.budget_account and self.budget_account.budget.per_record:
            return True
        return self.ledger is not None and len(self.history) % max(1, self._ledger_every) == 0

    def _before(self) -> tuple[float, float, float]:
        """Before the optimizer clips, at the weights that the gradients belong to: (rate, noise, clipping norm) of the step."""
        batches, indices = self._take_batches(), self._indices
        self._indices = None
        self._checks.require(len(self.history))
        rate, noise, norm = self._adapter.sample_rate(), self._adapter.noise_multiplier(), self._adapter.max_grad_norm()
        for number, batch in enumerate(batches):
            self._checks.batch(batch)
            own = None
            if self.scope == "dataset":
                attaching.known(batch, self._source)
            elif self._due():
                own = self._measurement.batch(batch, indices if self._one_by_one() else None)
            if not (self._due() or self.budget_account):
                self._gradients.skip()
            elif len(batch):
                self._gradients.batch(self._variants.own(batch) if own is None else own, number, len(batches))
        if self.scope == "dataset":
            self._measure_dataset()
        if self.budget_account and not self._affordable():
            raise self.budget_account.refusal(len(self.history))
        return rate, noise, norm

    def accept_weights(self) -> None:
        """Declare that the weights were changed since the last step by a function of weights of earlier steps alone.

        Averaging weights, going back to earlier ones and projecting them tell nothing new; a step on gradients of records does.
        """
        self._checks.accept_weights()

    def _take_batches(self) -> list[Records]:
        """What was seen since the last step."""
        seen = self._capture.take()
        if len(seen) > 1 and self._adapter.sample_rate() < 1.0:
            if self._adapter.rows() != len(seen[-1]):
                raise too_many(len(seen))
            seen = seen[-1:]
        return seen

    def _measure_dataset(self) -> None:
        self._measurement.dataset(self._due(), self._one_by_one(), check=not len(self.history))

    def _affordable(self) -> bool:
        return self._charge(self._adapter.sample_rate(), self._adapter.noise_multiplier(), pay=False)

    def _charge(self, rate: float, noise: float, pay: bool) -> bool:
        assert self.budget_account is not None
        batch, measured = largest_batch(len(self._source), rate), self._measurement
        if pay:
            self.budget_account.pay(measured.largest, measured.gaps, rate, noise, batch)
        return pay or self.budget_account.affordable(measured.largest, measured.gaps, rate, noise, batch)

    def may_step(self) -> bool:
        """Whether the budget allows a step at the current weights; True without a budget. With several processes, all ask."""
        if self.budget_account is None:
            return True
        with self._checks.voiding(Exception):
            self._checks.require(len(self.history))
            self._measure_dataset()
        return self._affordable()

    def _commit(self, rate: float, noise: float) -> None:
        """The optimizer takes a step, with the rate and noise that it had before."""
        if self.scope == "batch" and self._due():
            self._measurement.join_processes(self._one_by_one())
        if self.budget_account:
            self._charge(rate, noise, pay=True)
        if self.ledger is not None:
            self.ledger.step(self._measurement.gaps, rate, noise)
        self.history.add(self._measurement.largest, rate, noise)
        self._forget()
        if self.writers and (not processes.together() or torch.distributed.get_rank() == 0):
            entry = self.history.entry()
            for writer in self.writers:
                writer.write(entry)

    # ------------------------------------------------------------------ answers

    @property
    def distances(self) -> Real:
        """R_t of each step so far, in clipping norms."""
        return self.history.distances

    @property
    def optimizer(self) -> Any:
        return self._adapter.optimizer

    @property
    def label(self) -> str:
        """What the numbers are: belongs next to each of them."""
        return self.history.label

    @property
    def run(self) -> DPSGD:
        return self.history.run

    def risk(self, method: str = "exact") -> Risk:
        """Attribute inference against the run so far; its description carries the scope."""
        return self.history.risk(method)

    def membership(self, relation: str = "substitution", method: str = "exact") -> Risk:
        """Membership inference against the same run."""
        return self.history.membership(relation, method)

    @property
    def purse(self) -> BudgetAccount | None:
        """The former name of `budget_account`."""
        return self.budget_account

    @property
    def exhausted(self) -> bool:
        """The budget refused a step."""
        return self.budget_account is not None and self.budget_account.exhausted

    @property
    def proof(self) -> Proof:
        """What the budget has proved so far."""
        if self.budget_account is None:
            raise ValueError("nothing is proved without a budget: make the monitor with budget=Budget(...) and scope='dataset'.")
        self._checks.require(len(self.history))
        return self.budget_account.proof(len(self.history))

    def progress(self) -> str:
        """One short line for a progress bar."""
        return self.history.progress(self.secret.name)

    def metrics(self) -> dict[str, float]:
        """Numbers of the last step for loggers; their names carry the scope."""
        return self.history.metrics()

    def summary(self) -> dict[str, Any]:
        """Everything in one mapping, for JSON."""
        answers: dict[str, Any] = {"secret": self.secret.name, "values": self.secret.count, **self.history.summary()}
        if self.budget_account:
            try:
                answers["proof"] = str(self.proof)
            except NotProved as problem:
                answers["proof"] = f"Not proved: {problem}"
        return answers

    def state_dict(self) -> dict[str, Any]:
        """To be saved next to the model's; a monitor made alike goes on with the same numbers after `load_state_dict`."""
        state: dict[str, Any] = {"made": self._made(), "history": self.history.state_dict()}
        state["checks"] = self._checks.state_dict()
        if self.ledger is not None:
            state["ledger"] = self.ledger.state_dict()
        if self.budget_account is not None:
            state["purse"] = self.budget_account.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, mine in self._made().items():
            theirs = state["made"].get(name)
            if theirs != mine:
                raise ValueError(f"the state belongs to another monitor: its {name} is {theirs!r}, this one's {mine!r}.")
        self.history.load_state_dict(state["history"])
        self._checks.load_state_dict(state["checks"], len(self.history))
        if self.ledger is not None:
            self.ledger.load_state_dict(state["ledger"])
        if self.budget_account is not None:
            self.budget_account.load_state_dict(state["purse"])
        self._forget()
        for writer in self.writers:
            writer.rewind(len(self.history))

    def _made(self) -> dict[str, Any]:
        made: dict[str, Any] = {"secret": self.secret.name, "values": self.secret.digest(), "records": len(self._source)}
        made |= {"noise_multiplier": self._adapter.noise_multiplier(), "sample_rate": self._adapter.sample_rate()}
        made |= {"max_grad_norm": self._adapter.settings()[:2]}
        made |= {"scope": self.scope, "diameter": self.diameter, "every": self.every, "ledger": self._ledger_every}
        return made | {"budget": repr(self.budget_account.budget) if self.budget_account else None}

    def __repr__(self) -> str:
        return f"AttributeMonitor({self.secret.name!r}, {len(self.history)} steps, {self.scope} scope)"

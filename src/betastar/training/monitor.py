"""AttributeMonitor: attribute-inference risk while a model trains with Opacus. The training loop stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from numpy.typing import ArrayLike, NDArray
from opacus.accountants import IAccountant
from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from betastar import validation
from betastar.display import Display
from betastar.dpsgd import DPSGD
from betastar.risk import Risk
from betastar.training import attaching, processes
from betastar.training.batch_capture import Criterion
from betastar.training.budget import Budget, BudgetAccount, Proof
from betastar.training.checks.step_checks import NotProved
from betastar.training.gradients.distances import DIAMETERS
from betastar.training.history import SCOPES, History
from betastar.training.ledger import Ledger
from betastar.training.monitored_steps import Accounts, MonitoredSteps
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records, pair
from betastar.training.saved_training import SavedTraining, monitor_display, monitor_files
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source
from betastar.training.writers import Writer


class AttributeMonitor(SavedTraining):
    """Measures at each step how far the clipped gradients of a record can move when its secret takes another value.

    The distance of a record is the largest distance between its clipped gradients over two values of the secret, in units of the
    clipping norm. The distance of a step is the largest one over the records that are measured.

    Parameters
    ----------
    model, optimizer, loader : objects
        What `make_private` of Opacus returned.
    criterion : callable
        The loss that the training loop calls as `criterion(model(inputs), target)`. If it is a plain function and not a module,
        the loop has to call `monitor.criterion` in its place.
    secret : Secret
        The sensitive attribute and its values.
    scope : "batch" or "dataset"
        "batch" measures the sampled records, which is cheap and gives an estimate. "dataset" measures all records at the current
        weights before each step.
    diameter : "exact" or "centroid"
        How the distance of a record is computed. "exact" compares all pairs of values. "centroid" (the paper's approximation) is
        an upper bound of it.
    every : int
        The monitor measures every so many steps. A step that is not measured takes the distance of the last measured one.
    ledger : bool or int
        Whether the leakage of each record is kept. With a number k, single records are measured in every k-th measured step
        only, which is cheaper. In batch scope, call `monitor.records(indices)` before each forward pass.
    budget : Budget, optional
        Training stops before the step that would break the budget. This needs scope="dataset".
    writers : sequence of Writer
        Where the figures of each step are written.
    split : callable
        Turns a batch of the loader into `Records`, if batches are not (inputs, target, ...).
    amplification : bool
        False analyses any loader without replacement as if every record took part in every step. True analyses what the loader
        does: Poisson sampling of Opacus, a loader of `private_loader`, or shuffling of PyTorch, of which little is proved.
    accountant : IAccountant, optional
        The accountant of the `PrivacyEngine`, which counts the steps. A budget needs it if the optimizer's step hook was
        replaced.
    memory : int, optional
        The number of bytes that measuring may take beyond a step of Opacus: copies of weights for the checks, and passes over
        variants. By default, it is up to 640 MiB, or up to 1 GiB if all values of one record need it. Code of
        libraries that has to be loaded, about 60 MiB, is not counted.

    Raises
    ------
    TypeError, ValueError
        If an argument is not allowed, or if the training cannot be measured; the message says why.
    GradientError
        If the gradients of single records cannot be computed, or do not follow from weights and records alone.
    UnsupportedOpacus
        If the installed version of Opacus lacks a part that the monitor needs.

    Examples
    --------
    >>> import torch
    >>> from opacus import PrivacyEngine
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from betastar.training import AttributeMonitor, Secret
    >>> x = torch.randn(40, 3)
    >>> x[:, 1] = (x[:, 1] > 0).float()
    >>> module, criterion = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss()
    >>> model, optimizer, loader = PrivacyEngine().make_private(
    ...     module=module,
    ...     optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(TensorDataset(x, torch.arange(40) % 2), batch_size=10),
    ...     noise_multiplier=2.0,
    ...     max_grad_norm=1.0,
    ... )
    >>> secret = Secret.column(1, values=[0.0, 1.0], name="flag")
    >>> monitor = AttributeMonitor(model, optimizer, loader, criterion, secret)
    >>> for inputs, target in loader:
    ...     optimizer.zero_grad()
    ...     criterion(model(inputs), target).backward()
    ...     optimizer.step()
    >>> monitor
    AttributeMonitor('flag', 4 steps, batch scope)
    >>> bool(monitor.risk().bayes_security.lower > monitor.membership().bayes_security.upper)
    True
    """

    def __init__(
        self,
        model: GradSampleHooks,
        optimizer: DPOptimizer,
        loader: DataLoader[Any],
        criterion: Criterion,
        secret: Secret,
        *,
        scope: str = "batch",
        diameter: str = "exact",
        every: int = 1,
        ledger: bool | int = False,
        budget: Budget | None = None,
        writers: Sequence[Writer] = (),
        split: Callable[[Any], Records] = pair,
        amplification: bool = True,
        accountant: IAccountant | None = None,
        memory: int | None = None,
    ) -> None:
        if not isinstance(secret, Secret):
            raise TypeError(f"secret must be a Secret, got {secret!r}.")
        if not callable(criterion):
            raise TypeError(f"criterion must be callable, got {criterion!r}.")
        if hasattr(optimizer, "gap_clipping"):
            raise ValueError(
                "optimizer clips gaps, so that distances are known in advance: ask optimizer.gap_clipping for the risk. A "
                "monitor would measure gradients that are not used."
            )
        self.secret = secret
        self.scope = validation.choice("scope", scope, SCOPES)
        self.diameter = validation.choice("diameter", diameter, DIAMETERS)
        self.every = validation.whole("every", every)
        attaching.require_budget_scope(budget, self.scope)
        self._ledger_every = self.every * validation.whole("ledger", int(ledger), low=0)
        self.writers = list(writers)
        self._adapter = OpacusAdapter(model, optimizer, loader, amplification, accountant)
        self._source = Source(loader.dataset, loader.collate_fn, split, self._adapter.device)
        training = attaching.prepare(self._adapter, self._source, criterion, secret, diameter, memory, self.scope)
        attaching.require_trainable_by_opacus(training)
        self.history = History(self.scope, self.diameter)
        self.ledger = Ledger(len(self._source), self.scope) if ledger or (budget and budget.per_record) else None
        self.budget_account = BudgetAccount(budget, len(self._source)) if budget else None
        accounts = Accounts(self.history, self.ledger, self.budget_account)
        self._steps = MonitoredSteps(training, criterion, accounts, self.scope, self.every, self._ledger_every, self._write)

    def _write(self) -> None:
        """Tell the writers of the step that was recorded last; with several processes, the first one does."""
        if self.writers and (not processes.together() or torch.distributed.get_rank() == 0):
            entry = self.history.entry()
            for writer in self.writers:
                writer.write(entry)

    # ------------------------------------------------------------------ while training

    @property
    def criterion(self) -> Criterion:
        """The loss to call in the training loop if the criterion is a plain function; a module is returned as it is."""
        return self._steps.capture.criterion

    def records(self, indices: ArrayLike | torch.Tensor) -> None:
        """Tell the ledger which records the coming batch holds. In batch scope, call this before each forward pass.

        Parameters
        ----------
        indices : sequence of int
            The numbers of the records in the data set, in the order of the batch.

        Raises
        ------
        ValueError
            If the monitor keeps no ledger, or if the data set has no such record.
        """
        if self.ledger is None:
            raise ValueError("the monitor keeps no ledger: make it with ledger=True.")
        numbers = self._steps.indices = torch.as_tensor(indices).flatten()
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self._source):
            raise ValueError(f"indices must be between 0 and {len(self._source) - 1}, got {numbers.tolist()[:5]}.")

    def may_step(self) -> bool:
        """Ask whether the budget allows a step at the current weights. With several processes, all of them have to ask.

        Returns
        -------
        bool
            True without a budget.

        Raises
        ------
        NotProved
            If something happened that the proof of the budget does not cover.
        """
        return self.budget_account is None or self._steps.may_step()

    def accept_weights(self) -> None:
        """Declare that the weights were changed since the last step by a function of weights of earlier steps alone.

        Averaging weights, going back to earlier ones and projecting them reveal nothing new about the records. A further step on
        gradients of records does, and must not be declared.
        """
        self._steps.checks.accept_weights()

    def detach(self) -> None:
        """Stop measuring. The figures of the steps so far stay."""
        self._steps.detach()

    # ------------------------------------------------------------------ answers

    @property
    def distances(self) -> NDArray[Any]:
        """The distance R_t of each step so far, in clipping norms."""
        return self.history.distances

    @property
    def optimizer(self) -> DPOptimizer:
        """The optimizer that the monitor watches."""
        return self._adapter.optimizer

    @property
    def label(self) -> str:
        """What kind of statement the figures are. It belongs next to each of them."""
        return self.history.label

    @property
    def run(self) -> DPSGD:
        """Noise, sampling and number of the steps so far. An unfinished epoch counts as a whole one, where epochs count."""
        return self.history.run

    def risk(self, method: str = "exact") -> Risk:
        """Analyse attribute inference against the steps so far.

        Parameters
        ----------
        method : str
            As in `betastar.analyze`.

        Returns
        -------
        Risk
            Its description contains the `label`.

        Raises
        ------
        ValueError
            If no step was taken yet.
        """
        return self.history.risk(method)

    def membership(self, relation: str = "substitution", method: str = "exact") -> Risk:
        """Analyse membership inference against the same steps.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.
        method : str
            As in `betastar.analyze`.

        Returns
        -------
        Risk
            The risk of the worst case, which does not depend on the distances.

        Raises
        ------
        ValueError
            If no step was taken yet.
        """
        return self.history.membership(relation, method)

    @property
    def exhausted(self) -> bool:
        """Whether the budget has refused a step."""
        return self.budget_account is not None and self.budget_account.exhausted

    @property
    def proof(self) -> Proof:
        """What the budget has proved so far. Raises `NotProved` if something happened that the proof does not cover."""
        if self.budget_account is None:
            raise ValueError("nothing is proved without a budget: make the monitor with budget=Budget(...) and scope='dataset'.")
        self._steps.require_all_seen()
        return self.budget_account.proof(len(self.history))

    def progress(self) -> str:
        """Describe the risk so far in one short line for a progress bar.

        Returns
        -------
        str
            β* of the secret and of membership, as the affinity estimates them.
        """
        return self.history.progress(self.secret.name)

    def metrics(self) -> dict[str, float]:
        """Give the figures of the last step to a logger.

        Returns
        -------
        dict
            Numbers by names that contain the scope.
        """
        return self.history.metrics()

    def summary(self) -> dict[str, Any]:
        """Give all figures in one mapping.

        Returns
        -------
        dict
            It can be written as JSON.
        """
        answers: dict[str, Any] = {"secret": self.secret.name, "values": self.secret.count, **self.history.summary()}
        if self.budget_account:
            try:
                answers["proof"] = str(self.proof)
            except NotProved as problem:
                answers["proof"] = f"Not proved: {problem}"
        return answers

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the monitor, to be saved next to the model's.

        Returns
        -------
        dict
            A monitor that is made alike goes on with the same figures after `load_state_dict`.
        """
        state: dict[str, Any] = {"made": self._made(), "history": self.history.state_dict()}
        state["checks"] = self._steps.checks.state_dict()
        if self.ledger is not None:
            state["ledger"] = self.ledger.state_dict()
        if self.budget_account is not None:
            state["budget"] = self.budget_account.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. Load the model's state and the accountant's as well.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.

        Raises
        ------
        ValueError
            If the state belongs to another secret, noise, sampling rate, clipping norm, scope or budget.
        """
        for name, mine in self._made().items():
            theirs = state["made"].get(name)
            if theirs != mine:
                raise ValueError(f"the state belongs to another monitor: its {name} is {theirs!r}, this one's {mine!r}.")
        self.history.load_state_dict(state["history"])
        self._steps.checks.load_state_dict(state["checks"], len(self.history))
        if self.ledger is not None:
            self.ledger.load_state_dict(state["ledger"])
        if self.budget_account is not None:
            self.budget_account.load_state_dict(state["budget"])
        self._steps.forget()
        for writer in self.writers:
            writer.rewind(len(self.history))

    def _made(self) -> dict[str, object]:
        """What a saved state must have been made with."""
        made: dict[str, object] = {"secret": self.secret.name, "values": self.secret.digest(), "records": len(self._source)}
        made |= {"noise_multiplier": self._adapter.noise_multiplier(), "sampling": asdict(self._adapter.drawn().scheme)}
        made |= {"max_grad_norm": self._adapter.settings()[:2]}
        made |= {"scope": self.scope, "diameter": self.diameter, "every": self.every, "ledger": self._ledger_every}
        return made | {"budget": repr(self.budget_account.budget) if self.budget_account else None}

    def _files(self) -> Mapping[str, str]:
        return monitor_files(self)

    def _display(self, brief: bool) -> Display:
        return monitor_display(self, brief)

    def __repr__(self) -> str:
        return f"AttributeMonitor({self.secret.name!r}, {len(self.history)} steps, {self.scope} scope)"

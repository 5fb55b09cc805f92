"""Games on real training: the user's model, data and code, attacked from three places."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from betastar import files, validation
from betastar.audit.common import AuditError, jobs_of, seed_of, spread
from betastar.audit.evidence import playing
from betastar.audit.evidence.attackers import Seen, learn, statistics
from betastar.audit.evidence.challenges import Challenge, Criterion, Data, challenge_of, leaves, seeded
from betastar.audit.evidence.playing import COLUMNS, Factory, Game, Train
from betastar.audit.verdict import intervals
from betastar.audit.verdict.games import OUTPUTS, UPDATES, WEIGHTS, Audit, Claim, Games, judge, judge_many
from betastar.audit.verdict.leakage import FEWEST, Leakage, leakage
from betastar.dpsgd import DPSGD
from betastar.steps.poisson import only_poisson
from betastar.threats import FARTHEST, AttributeInference, Membership, Threat
from betastar.training import Records, Secret
from betastar.training.records import pair

#: Widest interval of the advantage that is worth having, unless another is asked for.
WIDTH = 0.25
#: The number of other records with whose outputs those of a candidate are compared.
POPULATION = 64


def games(
    factory: Factory,
    train: Train,
    data: Data,
    run: DPSGD | Callable[[int], DPSGD],
    threat: Threat | None = None,
    *,
    max_grad_norm: float,
    challenge: Any = "canary",
    secret: Secret | None = None,
    values: Sequence[Any] | None = None,
    gap: float | None = None,
    split: Callable[[Any], Records] = pair,
    criterion: Criterion | None = None,
    games: int = 400,
    seed: int | None = None,
    confidence: float = 0.95,
    prior: float | Sequence[float] = 0.5,
    width: float = WIDTH,
    references: int = 512,
    loss_reduction: str = "mean",
    jobs: int = 1,
    folder: str | Path | None = None,
    depends: Mapping[str, Any] | None = None,
    tell: Callable[[int, int], None] | None = None,
    divisor: float | None = None,
) -> Games:
    """Train many times by the user's own code, and count how often attackers find out on which data.

    In each game a world is drawn at random: the challenged record is this or that. The attacker on "updates" weighs the worlds by
    the likelihood of every update along the challenge's gradients, and also tries statistics for trainings that are not what they
    claim. The attackers on "weights" and "outputs" learn from the even games (shadow runs) and are measured in the odd ones.

    A canary shows what clipping and noise do to its own weight. It does not see code that gives out something else, and where
    each layer is clipped by itself its gradient is below the worst case. Play games with records of the data, too.

    Parameters
    ----------
    factory : callable
        `factory()` makes a new, plain model. It is called for each game, with randomness of its own.
    train : callable
        `train(model, data)` trains the model in place, and calls `make_private` of Opacus inside.
    data : Dataset
        The records, with a length.
    run : DPSGD or callable
        What the training claims to be, or a function from a number of records to it.
    threat : Threat, optional
        Membership by substitution; with a secret, attribute inference at the gap, or at distance 2 without one.
    max_grad_norm : float
        The clipping norm of the training.
    challenge : "canary", "layers", int or record
        "canary" is a record whose gradient has the full clipping norm and a weight of its own: the worst case. "layers" is one
        that pushes the gradient of each layer, so that a layer that is not clipped shows. Otherwise the number of a record in
        the data, or the record itself, such as the most exposed one, `monitor.ledger.most_exposed(1)[0].record`. For
        `Membership(records=k)`, a canary in k copies, or k numbers of records.
    secret : Secret, optional
        The attribute whose value the attackers want.
    values : sequence, optional
        The values of the secret that the attacker considers; all of them by default.
    gap : float, optional
        The gap of gap clipping, in clipping norms, if `train` clips gaps of this secret (`make_attribute_private`).
    split : callable
        Turns a batch into `Records`, if batches are not (inputs, target, ...), as for the monitor: texts, several inputs.
    criterion : callable, optional
        The loss of the training; cross entropy by default. The attackers compute with it.
    games : int
        The number of games. Decide on it before you look at the result: the p-value does not know of a second look.
    seed : int, optional
        Drawn and reported by default.
    confidence : float
        The confidence of all intervals.
    prior : float or sequence of float
        The probability of the positive world, or of each value.
    width : float
        The widest interval of the advantage that is accepted.
    references : int
        The number of records, drawn anew at every step, from which the attacker estimates what the other records contribute. With
        0 the attacker does not estimate it.
    loss_reduction : "mean" or "sum"
        As in `make_private`.
    jobs : int
        The number of processes; -1 for all cores.
    folder : path, optional
        Where the games are stored. An audit that was interrupted goes on from there, and so does one with more games.
    depends : mapping, optional
        What else the games depend on, as JSON (a learning rate, a version): code can be compared in part only. A folder with
        games that depend on something else is refused.
    tell : callable, optional
        Called with the number of games played and the number of all games.
    divisor : float, optional
        For a training without Opacus: the number by which it divides its noisy sums.

    Returns
    -------
    Games
        One audit for each attacker.

    Raises
    ------
    AuditError
        If this training cannot be audited, or is not the one that `run` claims.
    ValueError
        If an argument is not allowed, or the games are too few for the width.

    Examples
    --------
    >>> import torch
    >>> from opacus import PrivacyEngine
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> import betastar as bs
    >>> from betastar import audit
    >>> data = TensorDataset(torch.randn(40, 3), torch.arange(40) % 2)
    >>> def train(model, data):
    ...     _, optimizer, loader = PrivacyEngine().make_private(
    ...         module=model,
    ...         optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...         data_loader=DataLoader(data, batch_size=20),
    ...         noise_multiplier=1.0,
    ...         max_grad_norm=1.0,
    ...     )
    ...     for x, y in loader:
    ...         optimizer.zero_grad()
    ...         torch.nn.functional.cross_entropy(model(x), y).backward()
    ...         optimizer.step()
    >>> claim = bs.DPSGD(noise_multiplier=1.0, sample_rate=0.5, steps=2)
    >>> model = lambda: torch.nn.Linear(3, 2)
    >>> audit.games(model, train, data, claim, max_grad_norm=1.0, games=100, seed=0, width=0.5).violated
    False
    """
    claim = playing.claimed(run, data)
    if gap is not None and secret is None:
        raise validation.wrong("gap", f"must be left out without a secret, got {gap!r}.")
    if gap is not None:
        validation.numbers("gap", gap, "between 0 and 2 (units of the clipping norm)", low=0.0, high=FARTHEST)
    if threat is None:
        threat = Membership() if secret is None else AttributeInference(FARTHEST if gap is None else gap)
    validation.choice("loss_reduction", loss_reduction, ("mean", "sum"))
    norm, jobs = float(validation.positive("max_grad_norm", max_grad_norm)), jobs_of(jobs)
    references = validation.whole("references", references, low=0)
    confidence = validation.probability("confidence", confidence, strict=True)
    playing.check(factory)
    stored = None if folder is None else GameFolder(Path(folder))
    seed = seed_of(stored.seed if stored is not None and seed is None else seed)
    with seeded(seed):
        model = factory() if isinstance(challenge, str) and challenge == "layers" else None
    posed = challenge_of(data, threat, challenge, secret, values, seed, split, model, criterion)
    priors = _priors(prior, len(posed))
    number = intervals.enough_games(games, width, 1.0 - max(priors), confidence)
    whole = divisor is None and loss_reduction == "mean"
    batch = _batch(posed, claim) if whole else playing.divisor_of(divisor, len(data), 0.0, loss_reduction)
    population = posed.others(POPULATION, torch.Generator().manual_seed(seed))
    loss = criterion or nn.CrossEntropyLoss()
    game = Game(factory, train, posed, claim, loss, norm, batch / norm, references, population, secret, gap, divisor is None)
    if stored is not None:
        more = {"threat": threat.describe(), "prior": list(priors), "seed": seed, "loss_reduction": loss_reduction}
        stored.claim({**game.described(), **more, "code": digest([factory, train], posed), **(depends or {})})
    claimed = Claim(claim, threat, priors[0] if len(posed) == 2 else priors, confidence, seed)
    _ = claimed.bound  # what cannot be analysed is refused before the games
    columns = played(game, number, priors, seed, jobs, stored, tell)
    audits = audits_of(columns, claimed, priors)
    beyond = None if secret is None else _beyond(columns, claimed)
    return Games(posed.title, audits, leakage_of(columns, priors, confidence), beyond)


def _beyond(columns: dict[str, NDArray[Any]], claim: Claim) -> float | None:
    """The largest distance between the candidates' gradients, if the bound is for a smaller one."""
    assert isinstance(claim.run, DPSGD)  # a training is one run
    # The distance is that of a step, however batches are drawn.
    poisson = [DPSGD(one.noise_multiplier, one.sample_rate, one.steps) for one in claim.run.segments]
    steps = only_poisson("the audit of a training", claim.threat.steps(reduce(add, poisson)))
    claimed, farthest = max(step.distance for step in steps), float(columns["farthest"].max())
    return farthest if farthest > 1.000001 * claimed + 1e-6 else None


def _batch(challenge: Challenge, run: DPSGD) -> int:
    """The batch size that Opacus expects and divides by; it must not tell in which world it is."""
    size, rate = len(challenge.data), playing.rate_of(run)
    least = size - len(challenge.places) if None in challenge.candidates else size
    batches = [max(1, int(number * rate + 1e-9)) for number in {size, least}]
    if len(set(batches)) > 1:
        raise AuditError(
            "data must have a number of records at which Opacus expects the same batch size when some are removed: it divides by "
            f"the whole part of records times rate, which changes between {least} and {size} and so tells membership. Leave a "
            "few records out, or choose a canary as challenge."
        )
    return batches[0]


def _priors(prior: float | Sequence[float], number: int) -> tuple[float, ...]:
    """The probability of each of `number` worlds."""
    if np.ndim(prior) == 0:
        first = float(validation.probability("prior", prior, strict=True))
        if number == 2:
            return (first, 1.0 - first)
        if first != 0.5:
            raise validation.wrong("prior", f"must be one number for each of the {number} values, got {prior!r}.")
        return (1.0 / number,) * number
    priors = tuple(float(one) for one in validation.probability("prior", prior, strict=True))
    if len(priors) != number or abs(sum(priors) - 1.0) > 1e-6:
        raise validation.wrong("prior", f"must be {number} numbers that add up to 1, got {np.asarray(prior).tolist()!r}.")
    return tuple(one / sum(priors) for one in priors)


# --- Playing the games: in which worlds, in how many processes, and which of them a folder holds already

#: Games that are kept in one file, and played in one go.
CHUNK = 10


def played(
    game: Game,
    games: int,
    priors: tuple[float, ...],
    seed: int,
    jobs: int = 1,
    stored: GameFolder | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> dict[str, NDArray[Any]]:
    """All games in order, those that the folder holds and those that are played now: an array for each of COLUMNS."""
    number = -(-games // CHUNK)
    kept = {i: stored.read(i) for i in range(number) if stored is not None and stored.path(i).exists()}
    missing = [(game, priors, seed, i, stored) for i in range(number) if i not in kept]
    made = spread(_play if jobs == 1 else _play_in_one_thread, missing, jobs)
    parts: list[dict[str, NDArray[Any]]] = []
    for i in range(number):
        parts.append(kept[i] if i in kept else next(made))
        _check_hits(game, parts)
        if tell is not None:
            tell(min(CHUNK * len(parts), games), games)
    return {name: np.concatenate([part[name] for part in parts])[:games] for name in parts[0]}


def _play_in_one_thread(
    game: Game, priors: tuple[float, ...], seed: int, chunk: int, stored: GameFolder | None
) -> dict[str, NDArray[Any]]:
    torch.set_num_threads(1)
    return _play(game, priors, seed, chunk, stored)


def _play(game: Game, priors: tuple[float, ...], seed: int, chunk: int, stored: GameFolder | None) -> dict[str, NDArray[Any]]:
    """One chunk of games, whose worlds and seeds follow from the audit's seed and the number of the chunk."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(chunk,)))
    drawn = random.choice(len(priors), size=CHUNK, p=priors)
    seen = [game.play(int(world), int(own)) for world, own in zip(drawn, random.integers(2**62, size=CHUNK), strict=True)]
    columns = {name: np.array([one[name] for one in seen]) for name in COLUMNS}
    if stored is not None:
        stored.write(chunk, columns)
    return columns


def _check_hits(game: Game, parts: list[dict[str, NDArray[Any]]]) -> None:
    """A canary that the model never sees says nothing."""
    if game.challenge.marks is None:
        return
    hits = sum(int(part["hits"].sum()) for part in parts)
    marked = [np.isin(part["world"], game.challenge.marked).sum() for part in parts]
    canaries = float(sum(marked)) * len(game.challenge.places)
    playing.check_hits(hits, playing.rate_of(game.run) * float(game.run.steps) * canaries)


# --- The folder of an audit: games that it holds are not played again, and are not used for another training

#: The number of records that stand for the data.
SOME = 100


class GameFolder:
    """The folder of an audit: what it is about, and its games in files of ten."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = folder / "audit.json"
        self.about: dict[str, Any] | None = json.loads(about.read_text()) if about.exists() else None

    @property
    def seed(self) -> int | None:
        return None if self.about is None else int(self.about["seed"])

    def claim(self, about: dict[str, Any]) -> None:
        """Make the folder that of this audit; the folder of another audit is refused."""
        about = json.loads(json.dumps(about))
        if self.about is not None:
            for name, value in about.items():
                if self.about.get(name) != value:
                    stored = self.about.get(name)
                    raise AuditError(f"folder {str(self.folder)!r} holds another audit: its {name} is {stored!r}, not {value!r}.")
            files.make_private(self.folder)
            return
        if self.folder.exists() and any(path.suffix != files.PARTIAL for path in self.folder.iterdir()):
            raise AuditError(f"folder must be new, empty or of an audit, got {str(self.folder)!r}.")
        files.make_private(self.folder)
        files.write(self.folder / "audit.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")

    def path(self, chunk: int) -> Path:
        return self.folder / f"games-{chunk:05d}.npz"

    def read(self, chunk: int) -> dict[str, NDArray[Any]]:
        with np.load(self.path(chunk)) as file:
            return {name: file[name] for name in file.files}

    def write(self, chunk: int, columns: dict[str, NDArray[Any]]) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **columns)  # type: ignore[arg-type]
        files.write(self.path(chunk), buffer.getvalue())


def digest(functions: list[Callable[..., Any]], challenge: Challenge) -> str:
    """A hash of the code of a training with what it uses, of the candidates and of some of the data.

    Of a function: its bytecode, defaults, what it closes over, and the globals that it names, so also helpers that it calls;
    of objects, their class and attributes; of modules of one's own, the file. Installed packages go by their names.
    """
    total, seen = hashlib.sha256(), set[int]()
    for function in functions:
        for part in _uses(function, seen):
            total.update(part)
    for record in [*challenge.candidates, *(challenge.data[i] for i in range(min(len(challenge.data), SOME)))]:
        total.update(repr(list(leaves("", record))).encode())
    return total.hexdigest()


def _uses(value: Any, seen: set[int]) -> Iterator[bytes]:
    """What a value is, and all that it uses."""
    told = list(leaves("", value))
    if told or value is None:
        yield repr((type(value).__name__, told)).encode()
    if id(value) in seen or isinstance(value, bool | int | float | complex | str | bytes | Tensor | np.ndarray):
        return
    seen.add(id(value))
    parts: list[Any] = []
    if isinstance(value, ModuleType):
        yield value.__name__.encode()
        if (file := getattr(value, "__file__", None)) and _is_own(file):
            yield Path(file).read_bytes()
    elif isinstance(value, CodeType):
        yield value.co_code + repr((value.co_names, value.co_varnames)).encode()
        parts = list(value.co_consts)
    elif isinstance(value, FunctionType):
        yield value.__qualname__.encode()
        if _is_own(value.__code__.co_filename):
            named = [value.__globals__[name] for name in sorted(_names(value.__code__)) if name in value.__globals__]
            cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
            parts = [value.__code__, value.__defaults__, value.__kwdefaults__, *cells, *named]
    elif isinstance(value, type):
        yield value.__qualname__.encode()
        file = getattr(sys.modules.get(value.__module__), "__file__", None)
        parts = [vars(value)[name] for name in sorted(vars(value)) if name[:2] != "__" or name in ("__init__", "__call__")]
        parts = [*parts, *value.__bases__] if file is None or _is_own(file) else []
    elif isinstance(value, MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, Mapping):
        parts = [one for pair in value.items() for one in pair]
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, set | frozenset):
        parts = sorted(value, key=repr)
    elif isinstance(value, staticmethod | classmethod | property):
        parts = [value.fget, value.fset] if isinstance(value, property) else [value.__func__]
    else:
        file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
        own_class = (file is None or _is_own(file)) and hasattr(value, "__dict__")
        held = vars(value) if own_class else value.state_dict() if isinstance(value, nn.Module) else None
        parts = [type(value), held, repr(value) if is_dataclass(value) else None]
    for part in parts:
        yield from _uses(part, seen)


def _names(code: CodeType) -> set[str]:
    """The names that code and the functions inside of it use."""
    return set(code.co_names).union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType)))


def _is_own(file: str) -> bool:
    """Whether a file is no part of Python, of betastar or of an installed package."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")] + [str(Path(files.__file__).parent)]
    return not any(Path(file).is_relative_to(folder) for folder in folders)


# --- The verdicts on the three attackers, from what each of them saw in the games

#: The column of the games that the attackers who learn see.
_SEEN = {WEIGHTS: "white", OUTPUTS: "black"}


def audits_of(columns: dict[str, NDArray[Any]], claim: Claim, priors: tuple[float, ...]) -> dict[str, Audit]:
    """The audit of each attacker. columns: what the games left, as `played` returns it."""
    world, evidence = columns["world"].astype(int), columns["evidence"]
    learned = _learned(columns, priors)
    if len(priors) > 2:
        audits = {UPDATES: judge_many(claim, world, evidence, UPDATES)}
        return audits | {place: judge_many(claim, world[1::2], logs, place, attack) for place, logs, attack in learned}
    assert isinstance(claim.run, DPSGD)
    positive, ties = world == 0, np.random.default_rng(claim.seed).random(len(world))
    others = statistics(columns["trace"], positive, claim.run)
    audits = {UPDATES: judge(claim, positive, evidence[:, 0] - evidence[:, 1], ties, UPDATES, others)}
    for place, logs, attack in learned:
        audits[place] = judge(claim, positive[1::2], logs[:, 0] - logs[:, 1], ties[1::2], place, attack=attack)
    return audits


def _learned(columns: dict[str, NDArray[Any]], priors: tuple[float, ...]) -> Iterator[tuple[str, NDArray[Any], str]]:
    """For each attacker of the final model, the log-likelihood of each world in the odd games, and the attack that was chosen."""
    for place, column in _SEEN.items():
        if columns[column].shape[1]:
            seen = Seen(columns[column], columns["confidences"], columns["black"].shape[1])
            yield place, *learn(seen, columns["world"].astype(int), np.array(priors))


def leakage_of(columns: dict[str, NDArray[Any]], priors: tuple[float, ...], confidence: float) -> Leakage | None:
    """The nearest-neighbour estimate of what the final model's outputs tell; None where there are too few games or no outputs."""
    outputs = columns["black"]
    if not outputs.shape[1] or len(outputs) < 2 * FEWEST:
        return None
    width = 1.0 / (1.0 - max(priors))  # accepts every width: the interval is part of the result
    return leakage(columns["world"].astype(int), outputs, prior=priors, confidence=confidence, width=width)

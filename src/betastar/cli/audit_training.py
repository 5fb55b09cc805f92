"""The commands `betastar audit training` and `betastar audit one-run`: a study, a run, or training code of one's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from betastar.answers.settings import choose, threat_of
from betastar.cli.audit_mechanism import KeepOptions, check_plot, keep, show
from betastar.cli.options import JsonOption, arguments, command, option
from betastar.runs.reading import Json
from betastar.threats import FARTHEST, Membership, Threat
from betastar.vocabulary import THREATS

if TYPE_CHECKING:
    from betastar.audit import Trials
    from betastar.training import Secret

#: What a file must define, and what it may.
NEEDED, OPTIONAL = (
    ("factory", "train", "data", "run", "max_grad_norm"),
    ("criterion", "secret", "threat", "gap", "split", "loss_reduction"),
)
WHAT = (
    f"'adult', the folder of a run, or a Python file that defines {', '.join(NEEDED[:-1])} and "
    f"{NEEDED[-1]} (and perhaps {', '.join(OPTIONAL[:-1])} and {OPTIONAL[-1]})."
)
OWN = "the study's, or the run's"


@dataclass(frozen=True)
class WhatArgument:
    what: str = option("adult", WHAT, argument="STUDY|RUN|FILE.py")


@dataclass(frozen=True)
class StudyOptions:
    """What is trained, if it is a study or a run. None: its own."""

    sample: int | None = None
    epochs: int | None = option(None, "Studies and runs: number of epochs.", OWN, min=1)
    batch_size: int | None = option(None, "Studies and runs: batch size.", OWN, min=1)
    noise_multiplier: float | None = option(None, "Studies and runs: noise multiplier.", OWN, min=0.01)
    max_grad_norm: float | None = option(None, "Studies and runs: clipping norm.", OWN, min=1e-6)
    learning_rate: float | None = option(None, "Studies and runs: learning rate.", OWN, min=0.0)
    hidden: tuple[int, ...] = option(
        (), "Studies and runs: width of a hidden layer (may be repeated, for several layers).", OWN, min=1
    )


@dataclass(frozen=True)
class AttackOptions:
    """Who attacks what."""

    threat: str | None = option(None, default="the file's, or membership")
    challenge: str = "canary"
    sensitive: str | None = option(None, "Adult, with threat attribute: the sensitive column.", "age")
    value: tuple[str, ...] = option((), "With threat attribute: a value that the secret may have (may be repeated).", "all")
    prior: tuple[float, ...] = option((), "Probability that the record was in, or of each value (may be repeated).", "all alike")
    distance: float | None = option(
        None, "With threat {distance_threats}: the distance of the bound, in clipping norms.", "the gap that is clipped, or 2"
    )
    records_per_person: int | None = None


@dataclass(frozen=True)
class GamesOptions:
    games: int = option(400, "How many times the model is trained.")
    width: float = 0.25
    references: int = 512


@dataclass(frozen=True)
class SeedOptions:
    seed: int | None = None
    confidence: float = 0.95


@dataclass(frozen=True)
class TrainingsOptions:
    """How the trainings are run, and where they are kept."""

    jobs: int = option(1, "Number of trainings at a time; -1 for all cores. The result does not depend on it.")
    output: Path | None = option(None, "Folder where the games are kept; an audit goes on with those that are there.")
    plot: Path | None = None


def training(
    code: WhatArgument,
    attack: AttackOptions,
    played: GamesOptions,
    study: StudyOptions,
    random: SeedOptions,
    options: TrainingsOptions,
    kept: KeepOptions,
    printed: JsonOption,
) -> None:
    """Train many times, each time with the challenge in or out (or with another value), and attack the training.

    Three attackers guess: one sees every update, one has the final weights, one can only ask the final model. Exits with 1 if
    the bound is violated.

    \b
    Examples:
      betastar audit training adult --sample 300 --batch-size 30 --epochs 6 --noise 0.7 --challenge most-exposed --jobs 2
      betastar audit training my_training.py --games 200 --jobs 2 -o audits/mine
      betastar audit training runs/adult --sample 1000 --threat attribute --value 20.0 --value 60.0 --challenge 17
    """
    from betastar.audit import training as play
    from betastar.audit.training_audit import CHUNK
    from betastar.cli import printing

    check_plot(options.plot, kept.force)
    keep(kept, "training")
    exposed = ", and training once to find the record that is exposed most" if attack.challenge == "most-exposed" else ""
    with printing.phase(f"preparing {code.what}{exposed}"):
        told = _attacked(code.what, attack, study)
    if options.output is not None and (there := len(list(options.output.glob("games-*.npz")))):
        printing.complain(f"{there * CHUNK} games are in {options.output} already.")
    with printing.counting("games", played.games) as tell:
        trials = play(
            **told,
            **vars(played),
            **vars(random),
            prior=(attack.prior[0] if len(attack.prior) == 1 else list(attack.prior)) if attack.prior else 0.5,
            jobs=options.jobs,
            folder=options.output,
            depends=_depends(code.what, attack, study),
            tell=lambda done, _: tell(done),
        )
    if options.plot is not None:
        from betastar.figures import plots

        plots.save(plots.trials(trials), options.plot.with_suffix(""), options.plot.suffix[1:])
    keep(kept, "training", trials.as_dict())
    printing.as_json(trials.as_dict()) if printed.json else _print(trials, options.plot)
    if trials.violated:
        raise typer.Exit(1)


@dataclass(frozen=True)
class CanariesOptions:
    canaries: int = 500
    values: int | None = None
    guesses: int | None = None
    attacker: str = "updates"
    delta: float = option(1e-5, "δ at which ε is bounded.")


def one_run(
    code: WhatArgument,
    options: CanariesOptions,
    study: StudyOptions,
    random: SeedOptions,
    kept: KeepOptions,
    printed: JsonOption,
) -> None:
    """Train once, with many canaries, and test the trade-off curve that the training claims.

    Each canary is in or out, or has one of several values; the attacker guesses the surest of them. In a Python file, run may be
    a function of the number of records, which the canaries add to. Exits with 1 if the claim is violated.

    \b
    Examples:
      betastar audit one-run adult --epochs 1 --canaries 1000
      betastar audit one-run my_training.py --canaries 200 --seed 1
      betastar audit one-run my_training.py --canaries 200 --values 4
    """
    from betastar.audit import one_run as play
    from betastar.cli import printing

    keep(kept, "one-run")
    told = _attacked(code.what, AttackOptions(threat="membership-add-remove"), study, canaries=True)
    names = (*NEEDED, "loss_reduction", "split")
    with printing.phase(f"training once, with {options.canaries} canaries"):
        result = play(**{name: told[name] for name in names if name in told}, **vars(options), **vars(random))
    keep(kept, "one-run", {"kind": "one-run", **result.as_dict()})
    printing.as_json(result.as_dict()) if printed.json else print(f"{result.sentence}\nSeed {result.seed}.")
    if result.violated:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    command(app)(training)
    command(app, "one-run")(one_run)


def _attacked(what: str, attack: AttackOptions, study: StudyOptions, canaries: bool = False) -> Json:
    """The arguments of an audit that say what is trained, and who attacks it: from a file, a run or a study."""
    if attack.threat is not None:
        choose("threat", attack.threat, THREATS)
    told = _file(what, attack) if what.endswith(".py") else _study(what, attack, study, canaries)
    if attack.threat is not None or "threat" not in told:
        told["threat"] = _threat(attack, told.get("gap"))
    if isinstance(told["threat"], Membership):
        for name in ("secret", "gap"):
            told.pop(name, None)
        return told
    if "secret" not in told:
        raise ValueError(f"--threat {attack.threat or 'attribute'} needs a secret in {what}, got none.")
    told["values"] = _values(told["secret"], attack.value)
    told["challenge"] = "random" if attack.challenge == "canary" else told["challenge"]
    return told


def _threat(attack: AttackOptions, gap: float | None) -> Threat:
    """The threat of the options; unless its distance is given, it is the gap, or the largest that there is."""
    name = attack.threat or "membership"
    distance = (FARTHEST if gap is None else gap) if attack.distance is None else attack.distance
    person = {} if attack.records_per_person is None else {"records_per_person": attack.records_per_person}
    if person and "records_per_person" not in THREATS[name].optional:
        raise ValueError(f"--records-per-person must be left out with threat {name}, got {attack.records_per_person}.")
    return threat_of(name, **dict.fromkeys(THREATS[name].takes, distance), **person)


def _values(secret: Secret, wanted: tuple[str, ...]) -> list[object] | None:
    """Values as they are written."""
    if not wanted:
        return None
    known = {str(label): label for label in secret.labels}
    if missing := [one for one in wanted if one not in known]:
        shown = ", ".join(list(known)[:8])
        raise ValueError(f"--value must be one of the values of {secret.name!r} ({shown}, …), got {missing[0]!r}.")
    return [known[one] for one in wanted]


def _file(path: str, attack: AttackOptions) -> Json:
    """What training code of one's own defines."""
    names = names_of(path)
    if missing := [name for name in NEEDED if name not in names]:
        raise ValueError(f"{path} must define {', '.join(NEEDED)}; it has no {missing[0]}.")
    return {name: names[name] for name in (*NEEDED, *OPTIONAL) if name in names} | {"challenge": _number(attack.challenge)}


def names_of(path: str) -> Json:
    """What a Python file defines."""
    import runpy

    if not Path(path).is_file():
        raise ValueError(f"there is no file {path!r}.")
    return runpy.run_path(path)


def _depends(what: str, attack: AttackOptions, study: StudyOptions) -> Json:
    """What the games of a folder depend on, by the names that folders of games have for it."""
    given = {**vars(study), "hidden": list(study.hidden) or None}
    return {
        "what": what,
        "sensitive": attack.sensitive,
        **{name: given[name] for name in ("sample", "epochs", "batch_size", "learning_rate", "hidden")},
        "noise": study.noise_multiplier,
        "clip": study.max_grad_norm,
        "file": hashlib.sha256(Path(what).read_bytes()).hexdigest() if Path(what).is_file() else None,
    }


def _number(challenge: str) -> int | list[int] | str:
    """The number of a record, the numbers of a person's records, or a word."""
    parts = challenge.split(",")
    if not all(part.isdigit() for part in parts):
        return challenge
    numbers = [int(part) for part in parts]
    return numbers if len(numbers) > 1 else numbers[0]


def _study(what: str, attack: AttackOptions, study: StudyOptions, canaries: bool) -> Json:
    """A study or a run as an audit wants it."""
    from betastar.runs.audited import MOST_EXPOSED, attacked, exposed_in, of_run
    from betastar.runs.config import Config
    from betastar.runs.loop import criterion_of

    folder = Path(what).is_dir()
    if folder and attack.sensitive is not None:
        raise ValueError(f"--sensitive must be left out for a run, whose secret is its own, got {attack.sensitive!r}.")
    config = of_run(what) if folder else Config(study=what, sensitive=attack.sensitive, seed=0)
    # The sample of an audit is taken of the training records, not of the data set.
    config = replace(config, **{name: value for name, value in arguments(study, Config).items() if name != "sample"})
    wanted = _number(attack.challenge)
    if wanted == MOST_EXPOSED and folder:
        wanted = exposed_in(what)
    trained = attacked(config, study.sample, wanted if isinstance(wanted, int) else None)
    if wanted == MOST_EXPOSED:
        wanted = trained.most_exposed()
    elif isinstance(wanted, int):
        wanted = trained.chosen.index(wanted)
    elif isinstance(wanted, list):
        if outside := [one for one in wanted if one not in trained.chosen]:
            raise ValueError(f"--challenge must be records of the sample, the first {len(trained.chosen)}, got {outside[0]}.")
        wanted = [trained.chosen.index(one) for one in wanted]
    return {
        "factory": trained.factory,
        "train": trained.train,
        "data": trained.data,
        "run": trained.run if canaries else trained.run(),
        "max_grad_norm": trained.max_grad_norm,
        "criterion": criterion_of(trained.data),
        "secret": trained.study.secret,
        "gap": trained.gap,
        "challenge": wanted,
    }


def _print(trials: Trials, plot: Path | None) -> None:
    from betastar.audit.results import WHO

    show(trials.sentence, {WHO[place]: audit for place, audit in trials.audits.items()})
    print(f"Challenge: {trials.challenge}.")
    if trials.comparison:
        print(trials.comparison)
    if trials.leakage is not None:
        print(f"\nWithout a model of the attack: {trials.leakage.sentence}\n{trials.leakage.caveat}")
    if plot is not None:
        print(f"The curves are in {plot}.")

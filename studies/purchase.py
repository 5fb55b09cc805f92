"""Purchase-100: 197,324 customers, 600 bits each, 100 classes.

It is too large to ship: the records are read from the public archive, or a synthetic stand-in is made. The paper and the study of
gap clipping train on the stand-in; `python -m studies.purchase --data ARCHIVE` trains once on the archive's records.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from betastar.runs import Column, Config, Recipe, RunFolder, Study, StudyError, TableEncoder, split, tensors, train
from betastar.training import Secret
from studies import command

RECORDS, BITS, CLASSES = 197_324, 600, 100
RECIPE = Recipe(batch_size=512, noise_multiplier=1.8, max_grad_norm=2.6, learning_rate=1e-3)
SECRET = Secret.column(0, [0.0, 1.0], labels=["not bought", "bought"], name="first item", unseen=True)


def purchase(
    path: str | Path | None = None,
    seed: int = 0,
    records: int = RECORDS,
    checksum: str | None = None,
    drop: Sequence[str] = (),
) -> Study:
    """The archive's records (a path or a URL), or the synthetic stand-in where there is none. drop: items by number, from 0."""
    x, y = synthetic(seed, records) if path is None else load(path, checksum)
    for item in drop:
        if not item.isdecimal() or int(item) >= BITS:
            raise StudyError(f"Purchase-100 has the items 0 to {BITS - 1}, got {item!r}.")
        x[:, int(item)] = 0
    train, test = split(len(x), seed)
    name = "Purchase-100 (synthetic)" if path is None else "Purchase-100"
    parts = (tensors(x[train], y[train]), tensors(x[test], y[test]))
    encoder = _encoder({int(item) for item in drop})
    return Study(name, *parts, SECRET, list(range(CLASSES)), RECIPE, encoder=encoder)


def _encoder(dropped: set[int]) -> TableEncoder:
    """Bits are inputs as they are. The columns of a table are called by the numbers of the items, from 0."""
    columns = [Column(str(item), "unused" if item in dropped else "number", mean=(0.0,), scale=(1.0,)) for item in range(BITS)]
    return TableEncoder("class", tuple(map(str, range(CLASSES))), tuple(columns))


def synthetic(seed: int = 0, records: int = RECORDS) -> tuple[Tensor, Tensor]:
    """A stand-in of the same shape: each class buys each item with its own probability, few of them often."""
    generator = torch.Generator().manual_seed(seed)
    likes = torch.rand(CLASSES, BITS, generator=generator) ** 3
    y = torch.randint(CLASSES, (records,), generator=generator)
    x = torch.rand(records, BITS, generator=generator) < likes[y]
    return x.to(torch.uint8), y


def load(source: str | Path, checksum: str | None = None, folder: Path | None = None) -> tuple[Tensor, Tensor]:
    """Bits and labels (from 0) of the archive's CSV: label from 1 to 100, then 600 bits; packed (.tgz, .gz, .xz) or not."""
    import pandas as pd

    path = _download(str(source), folder or Path.cwd()) if str(source).startswith(("http://", "https://")) else Path(source)
    if not path.is_file():
        raise StudyError(f"no file {path}: give the path or the URL of the Purchase-100 archive.")
    if checksum is not None and (actual := _sha256(path)) != checksum.lower():
        raise StudyError(f"{path} has the SHA-256 {actual}, not {checksum}: it is damaged or another file.")
    try:
        if path.suffixes[-1:] == [".tgz"] or path.suffixes[-2:] == [".tar", ".gz"]:
            with tarfile.open(path) as archive:
                member = next((member for member in archive if member.isfile()), None)
                if member is None:
                    raise StudyError(f"{path} holds no file.")
                frame = pd.read_csv(archive.extractfile(member), header=None, dtype="int16")
        else:
            frame = pd.read_csv(path, header=None, dtype="int16", compression="infer")
    except (ValueError, EOFError, tarfile.TarError, OSError) as problem:
        raise StudyError(f"{path} is truncated or no Purchase-100 table: {problem}") from None
    table = frame.to_numpy()
    if table.shape[1] != BITS + 1 or not len(table):
        raise StudyError(f"{path} has {table.shape[1]} columns and {len(table)} rows; expected a label and {BITS} bits a row.")
    labels, bits = table[:, 0], table[:, 1:]
    if not ((bits == 0) | (bits == 1)).all() or labels.min() < 1 or labels.max() > CLASSES:
        raise StudyError(
            f"{path} must hold labels from 1 to {CLASSES} and bits, got {labels.min()}…{labels.max()} and {bits.max()}."
        )
    return torch.from_numpy(bits.astype("uint8")), torch.from_numpy(labels.astype("int64") - 1)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(url: str, folder: Path) -> Path:
    """Download a file into the folder and show the progress; a download that broke off goes on where it stopped."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    path = folder / (url.rstrip("/").rsplit("/", 1)[-1] or "purchase")
    if path.exists():
        return path
    partial = path.with_name(path.name + ".partial")
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            resumed = answer.status == 206
            length = answer.headers.get("Content-Length")
            total = int(length) + (start if resumed else 0) if length else None
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            with partial.open("ab" if resumed else "wb") as file, Progress(*columns, transient=True) as progress:
                task = progress.add_task(f"downloading {path.name}", total=total, completed=start if resumed else 0)
                while block := answer.read(1 << 20):
                    file.write(block)
                    progress.advance(task, len(block))
    except (urllib.error.URLError, OSError) as problem:
        raise StudyError(f"{url} could not be downloaded ({problem}); what has arrived is kept, try again.") from None
    if total is not None and partial.stat().st_size != total:
        raise StudyError(f"{url} broke off after {partial.stat().st_size} of {total} bytes; what has arrived is kept, try again.")
    partial.replace(path)
    return path


def trained(output: Path, data: str | None = None, checksum: str | None = None, seed: int = 0, quick: bool = False) -> RunFolder:
    """One run with the paper's parameters, or one epoch on a tenth of the synthetic records; it goes on where it stopped."""
    config = Config(study="purchase", sensitive=SECRET.name, seed=seed, epochs=1 if quick else None, ledger=False, every=1)
    study = purchase(data, config.data_seed(), RECORDS // 10 if quick else RECORDS, checksum)
    return train(config, output, resume=True, study=config.applied_to(study))


def main() -> None:
    options = command.parser(
        "purchase", "Train on Purchase-100, or on its synthetic stand-in, and watch the first item.", "one epoch, fewer records"
    )
    options.add_argument("--data", help="path or URL of the archive; without it, synthetic records are used")
    options.add_argument("--checksum", help="the SHA-256 checksum that the archive must have")
    options.add_argument("--seed", type=int, default=0, help="seed of split, weights, sampling and noise (default: 0)")
    given = options.parse_args()
    with command.ended("purchase"):
        folder = trained(given.output, given.data, given.checksum, given.seed, given.quick)
        print(json.dumps({"folder": str(folder.path), "last": folder.epochs[-1]}) if given.json else folder.path)


if __name__ == "__main__":
    main()

"""What Opacus does not promise is used by one module, which refuses a version of Opacus that lacks any of it."""

from __future__ import annotations

import re
from pathlib import Path
from types import MethodType
from typing import Any

import opacus
import pytest
import torch
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleHooksFastGradientClipping
from torch import nn

import betastar
from betastar.audit.training_audit import one_game
from betastar.training.opacus import adapter
from betastar.training.opacus.adapter import OpacusAdapter, UnsupportedOpacus
from tests.training.private import build, fit, gapped, private

INTERNALS = [(owner, name) for owner, names in adapter.OF_OPACUS for name in names]


def made(**options: Any) -> tuple[Any, ...]:
    module, data, _ = build("tanh")
    return private(module, data, **options)


def refused(name: str, *parts: Any) -> None:
    with pytest.raises(UnsupportedOpacus, match=rf"Opacus {re.escape(opacus.__version__)} has no \w[\w.]*\.{name},"):
        OpacusAdapter(*parts)


def forget(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Take an attribute away, from the classes that a class inherits it from, too."""
    for one in owner.__mro__ if isinstance(owner, type) else (owner,):
        if name in vars(one):
            monkeypatch.delattr(one, name)


@pytest.mark.parametrize(("owner", "name"), INTERNALS, ids=[name for _, name in INTERNALS])
def test_a_part_that_opacus_lacks_is_refused(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = made()
    OpacusAdapter(*parts)
    forget(monkeypatch, owner, name)
    refused(name, *parts)


@pytest.mark.parametrize("name", adapter.OF_MODEL)
def test_a_model_without_a_part_is_refused(name: str) -> None:
    parts = made()
    delattr(parts[0], name)
    refused(name, *parts)


@pytest.mark.parametrize("name", adapter.OF_OPTIMIZER)
def test_an_optimizer_without_a_part_is_refused(name: str) -> None:
    parts = made()
    delattr(parts[1], name)
    refused(name, *parts)


@pytest.mark.parametrize("name", adapter.OF_PARAMETER)
def test_a_parameter_without_a_part_is_refused(name: str) -> None:
    parts = made()
    delattr(parts[1].params[-1], name)
    refused(name, *parts)


def test_ghost_clipping_needs_norms_and_the_norm_that_it_clips_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, _, loader = made(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())
    OpacusAdapter(model, optimizer, loader)
    with monkeypatch.context() as patch:
        forget(patch, GradSampleHooksFastGradientClipping, "per_sample_gradient_norms")
        refused("per_sample_gradient_norms", model, optimizer, loader)
    del model.max_grad_norm
    refused("max_grad_norm", model, optimizer, loader)


def test_clipping_by_layer_needs_the_norms_of_the_layers() -> None:
    parts = made(clip=[0.1, 0.2, 0.3, 0.4], clipping="per_layer")
    OpacusAdapter(*parts)
    del parts[1].max_grad_norms
    refused("max_grad_norms", *parts)


@pytest.mark.parametrize(("present", "missing"), [("rank", "world_size"), ("world_size", "rank")])
def test_a_distributed_optimizer_needs_its_rank_and_the_number_of_processes(present: str, missing: str) -> None:
    parts = made()
    setattr(parts[1], present, 1)
    refused(missing, *parts)


def test_an_attribute_of_the_users_model_is_not_the_clipping_norm() -> None:
    module, data, _ = build("tanh")
    module.max_grad_norm = 7.0
    assert OpacusAdapter(*private(module, data, clip=0.5)).max_grad_norm() == 0.5


def test_gap_clipping_refuses_an_optimizer_that_does_not_call_it() -> None:
    module, data, secret = build("tanh")
    parts, criterion = gapped(module, data, secret, gap=0.5)
    before = [p.detach().clone() for p in module.parameters()]

    def clip_otherwise(optimizer: Any) -> None:
        for parameter in optimizer.params:
            parameter.summed_grad = torch.zeros_like(parameter)

    parts[1].clip_and_accumulate = MethodType(clip_otherwise, parts[1])
    with pytest.raises(UnsupportedOpacus, match=r"without DPOptimizer\.clip_and_accumulate"):
        fit(parts, criterion, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_audits_look_for_the_parts_of_opacus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(adapter.dp_optimizer, "_generate_noise")
    with pytest.raises(UnsupportedOpacus, match="_generate_noise"):
        one_game.check(lambda: nn.Linear(2, 2))


#: A name that the project uses for something else as well is looked for as an attribute of another object than `self`.
AMBIGUOUS = {"_module": r"(?<!self)\._module\b", "max_grad_norm": None, "noise_multiplier": None, "params": None}
PROMISED = {"expected_batch_size", "loss_reduction", "generator", "secure_mode", "batch_first", "accumulated_iterations"}


def test_no_other_module_touches_these_parts() -> None:
    names = {name for _, name in INTERNALS} | {*adapter.OF_MODEL, *adapter.OF_OPTIMIZER, *adapter.OF_PARAMETER}
    names |= {"per_sample_gradient_norms", "max_grad_norms", "max_batch_len"}
    patterns = {name: AMBIGUOUS.get(name, rf"(?<![\w-]){name}\b") for name in names - PROMISED}
    patterns |= {"disable_hooks": r"\.disable_hooks\((?!\)\.\")", "enable_hooks": r"\.enable_hooks\("}
    root = Path(betastar.__file__).parent
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in root.rglob("*.py")}
    own = texts.pop("training/opacus/adapter.py")
    used = {name: pattern for name, pattern in patterns.items() if pattern}
    assert all(re.search(pattern, own) for name, pattern in used.items())
    assert [(path, name) for path, text in texts.items() for name, pattern in used.items() if re.search(pattern, text)] == []

"""What Opacus does not promise is used by one module, which refuses a version of Opacus that lacks any of it."""

from __future__ import annotations

import ast
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
from betastar.audit import one_game
from betastar.training.opacus import internals
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.opacus.internals import UnsupportedOpacus
from tests.training.private import build, fit, gapped, private

INTERNALS = [(owner, name) for owner, names in internals.OF_OPACUS for name in names]


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


@pytest.mark.parametrize("name", internals.OF_MODEL)
def test_a_model_without_a_part_is_refused(name: str) -> None:
    parts = made()
    delattr(parts[0], name)
    refused(name, *parts)


@pytest.mark.parametrize("name", internals.OF_OPTIMIZER)
def test_an_optimizer_without_a_part_is_refused(name: str) -> None:
    parts = made()
    delattr(parts[1], name)
    refused(name, *parts)


@pytest.mark.parametrize("name", internals.OF_PARAMETER)
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


@pytest.mark.parametrize("name", internals.OF_MAKE_PRIVATE)
def test_make_private_must_call_its_loader_as_it_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountant reads the loader there, and must not count another sampling if it is called otherwise."""
    parts = made()
    code = opacus.PrivacyEngine.make_private.__code__
    renamed = {
        field: tuple("another" if one == name else one for one in getattr(code, field)) for field in ("co_names", "co_varnames")
    }
    monkeypatch.setattr(opacus.PrivacyEngine.make_private, "__code__", code.replace(**renamed))
    with pytest.raises(UnsupportedOpacus, match=rf"has no {name} in PrivacyEngine.make_private"):
        OpacusAdapter(*parts)


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
    monkeypatch.delattr(internals.dp_optimizer, "_generate_noise")
    with pytest.raises(UnsupportedOpacus, match="_generate_noise"):
        one_game.check(lambda: nn.Linear(2, 2))


ROOT = Path(betastar.__file__).parent
ADAPTER = {f"training/opacus/{name}.py" for name in ("adapter", "internals", "watched_optimizers")}
#: What other modules may import of Opacus: its documented interface.
IMPORTED_ELSEWHERE = {
    ("opacus", "PrivacyEngine"),
    ("opacus.accountants", "IAccountant"),
    ("opacus.grad_sample", "GradSampleHooks"),
    ("opacus.optimizers", "DPOptimizer"),
    ("opacus.accountants.registry", "register_accountant"),
    ("opacus.utils.uniform_sampler", "DistributedUniformWithReplacementSampler"),
    ("opacus.utils.uniform_sampler", "UniformWithReplacementSampler"),
}


def names_used(tree: ast.AST) -> set[str]:
    """Names of attributes, and strings that could be given to `getattr`."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return attributes | {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def shared_names_of_an_optimizer(tree: ast.AST) -> set[str]:
    """Attributes of something that is called an optimizer, whose names objects of betastar and PyTorch have as well."""
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in internals.SHARED_NAMES]
    return {node.attr for node in taken if ast.unparse(node.value).endswith("optimizer")}


def imported_of_opacus(tree: ast.AST) -> set[tuple[str, str]]:
    """(module, name) of each import of Opacus."""
    pairs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "opacus":
            pairs |= {(node.module or "", alias.name) for alias in node.names}
        if isinstance(node, ast.Import):
            pairs |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "opacus"}
    return pairs


MODULES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}


def test_no_other_module_uses_what_opacus_does_not_promise() -> None:
    others = {path: tree for path, tree in MODULES.items() if path not in ADAPTER}
    used = {path: names_used(tree) & internals.UNPROMISED | shared_names_of_an_optimizer(tree) for path, tree in others.items()}
    assert {path: names for path, names in used.items() if names} == {}


def test_no_other_module_imports_more_than_the_documented_interface() -> None:
    others = {path: imported_of_opacus(tree) - IMPORTED_ELSEWHERE for path, tree in MODULES.items() if path not in ADAPTER}
    assert {path: names for path, names in others.items() if names} == {}


def test_the_list_of_internals_is_what_the_adapter_uses() -> None:
    """A name that is not used any more is not asked for."""
    used = set().union(*(names_used(MODULES[path]) for path in ADAPTER - {"training/opacus/internals.py"}))
    assert internals.UNPROMISED - used == {internals.LEFT_ON_LAYERS}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("value = parameter.summed_grad", "summed_grad"),
        ("value = getattr(parameter, 'grad_sample', None)", "grad_sample"),
        ("optimizer.pre_step = None", "pre_step"),
        ("queue = optimizer._step_skip_queue", "_step_skip_queue"),
    ],
)
def test_the_check_sees_each_way_to_use_a_part(line: str, name: str) -> None:
    assert names_used(ast.parse(line)) & internals.UNPROMISED == {name}

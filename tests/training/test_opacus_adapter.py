"""What Opacus does not promise is used by one module, which refuses a version of Opacus that lacks any of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import opacus
import pytest
from torch import nn

import betastar
from betastar.training.opacus import internals
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.opacus.internals import UnsupportedOpacus
from tests.training.private import build, private

#: Names that objects of betastar and PyTorch have as well, so that their use tells nothing.
SHARED_NAMES = {"_module", "noise_multiplier", "max_grad_norm", "loss_reduction", "params"}
#: The names that no module outside of the adapter may use.
UNPROMISED = {name for _, names in internals.OF_OPACUS for name in names} - SHARED_NAMES
UNPROMISED |= {*internals.OF_MODEL, *internals.OF_OPTIMIZER, *internals.OF_LAYERWISE_OPTIMIZER} - SHARED_NAMES
UNPROMISED |= {internals.LEFT_BY_ADAPTIVE_CLIPPING}
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


def test_ghost_clipping_needs_the_norm_that_it_clips_to() -> None:
    model, optimizer, _, loader = made(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())
    OpacusAdapter(model, optimizer, loader)
    del model.max_grad_norm
    refused("max_grad_norm", model, optimizer, loader)


def test_clipping_by_layer_needs_the_norms_of_the_layers() -> None:
    parts = made(clip=[0.1, 0.2, 0.3, 0.4], clipping="per_layer")
    OpacusAdapter(*parts)
    del parts[1].max_grad_norms
    refused("max_grad_norms", *parts)


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


ROOT = Path(betastar.__file__).parent
ADAPTER = {f"training/opacus/{name}.py" for name in ("adapter", "internals")} | {"audit/watched_optimizers.py"}
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
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in SHARED_NAMES]
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
    used = {path: names_used(tree) & UNPROMISED | shared_names_of_an_optimizer(tree) for path, tree in others.items()}
    assert {path: names for path, names in used.items() if names} == {}


def test_no_other_module_imports_more_than_the_documented_interface() -> None:
    others = {path: imported_of_opacus(tree) - IMPORTED_ELSEWHERE for path, tree in MODULES.items() if path not in ADAPTER}
    assert {path: names for path, names in others.items() if names} == {}


def test_the_list_of_internals_is_what_the_adapter_uses() -> None:
    """A name that is not used any more is not asked for."""
    used = set().union(*(names_used(MODULES[path]) for path in ADAPTER - {"training/opacus/internals.py"}))
    assert UNPROMISED - used == {internals.LEFT_BY_ADAPTIVE_CLIPPING}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("value = optimizer.expected_batch_size", "expected_batch_size"),
        ("value = getattr(model, 'hooks_enabled', None)", "hooks_enabled"),
        ("model.batch_first = True", "batch_first"),
        ("norms = optimizer.max_grad_norms", "max_grad_norms"),
    ],
)
def test_the_check_sees_each_way_to_use_a_part(line: str, name: str) -> None:
    assert names_used(ast.parse(line)) & UNPROMISED == {name}

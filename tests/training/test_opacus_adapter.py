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


def made(**options: Any) -> Any:
    """(model, optimizer, loader)"""
    module, data, _ = build("tanh")
    parts = private(module, data, **options)
    return parts[0], parts[1], parts[-1]


GHOST = {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}
#: Where each part is (a class, or the place among what `made` gives), and options with which it is needed.
PARTS: list[tuple[Any, str, dict[str, Any]]] = [
    *((owner, name, {}) for owner, names in internals.OF_OPACUS for name in names),
    *((0, name, {}) for name in internals.OF_MODEL),
    *((1, name, {}) for name in internals.OF_OPTIMIZER),
    (0, "max_grad_norm", GHOST),
    (1, "max_grad_norms", {"clip": [0.1, 0.2, 0.3, 0.4], "clipping": "per_layer"}),
]


@pytest.mark.parametrize(("owner", "name", "options"), PARTS, ids=[name for _, name, _ in PARTS])
def test_a_part_that_opacus_lacks_is_refused(owner: Any, name: str, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = made(**options)
    OpacusAdapter(*parts)
    if isinstance(owner, int):
        delattr(parts[owner], name)
    else:
        for one in owner.__mro__ if isinstance(owner, type) else (owner,):  # the classes that it inherits from, too
            if name in vars(one):
                monkeypatch.delattr(one, name)
    with pytest.raises(UnsupportedOpacus, match=rf"Opacus {re.escape(opacus.__version__)} has no \w[\w.]*\.{name},"):
        OpacusAdapter(*parts)


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
ADAPTER = {f"training/opacus/{name}.py" for name in ("adapter", "internals")} | {"audit/evidence/recorder.py"}
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


def test_no_other_module_uses_more_than_the_documented_interface() -> None:
    for path, tree in MODULES.items():
        if path not in ADAPTER:
            assert not names_used(tree) & UNPROMISED | shared_names_of_an_optimizer(tree), path
            assert imported_of_opacus(tree) <= IMPORTED_ELSEWHERE, path
    line = "value = optimizer.expected_batch_size, getattr(model, 'hooks_enabled', None)"
    assert names_used(ast.parse(line)) & UNPROMISED == {"expected_batch_size", "hooks_enabled"}


def test_the_list_of_internals_is_what_the_adapter_uses() -> None:
    """A name that is not used any more is not asked for."""
    used = set().union(*(names_used(MODULES[path]) for path in ADAPTER - {"training/opacus/internals.py"}))
    assert UNPROMISED - used == {internals.LEFT_BY_ADAPTIVE_CLIPPING}

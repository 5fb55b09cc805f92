"""The parts of Opacus that it does not promise, and the check that the installed version of Opacus has them.

`adapter.py` is the only module that uses these parts. `test_opacus_adapter.py` reads the names below and fails if another module
uses one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import opacus
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample import grad_sample_module_fast_gradient_clipping as ghost_clipping
from opacus.optimizers import DPOptimizer
from opacus.utils import batch_memory_manager, fast_gradient_clipping_utils
from torch import nn

#: Parts of modules and classes of Opacus.
OF_OPACUS: tuple[tuple[ModuleType | type, tuple[str, ...]], ...] = (
    (batch_memory_manager, ("BatchSplittingSampler",)),
    (fast_gradient_clipping_utils, ("DPLossFastGradientClipping",)),
    (ghost_clipping, ("GradSampleHooksFastGradientClipping",)),
    (GradSampleModule, ("iterate_submodules", "disable_hooks", "enable_hooks")),
    (DPOptimizer, ("accumulated_iterations", "params")),
)
#: Attributes of a model that `make_private` returned.
OF_MODEL = ("_module", "hooks_enabled", "batch_first")
#: Attributes of an optimizer that `make_private` returned.
OF_OPTIMIZER = ("noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction")
#: Attributes of a model with ghost clipping, and of an optimizer that clips by layer.
OF_GHOST_MODEL = ("max_grad_norm",)
OF_LAYERWISE_OPTIMIZER = ("max_grad_norms",)
#: What `make_private` calls its loader and its optimizer, and how it asks an accountant for the function that counts steps.
OF_MAKE_PRIVATE = ("data_loader", "optimizer", "get_optimizer_hook_fn")
#: An attribute that adaptive clipping of `opacus.utils.adaptive_clipping` writes on an optimizer in each backward pass.
LEFT_BY_ADAPTIVE_CLIPPING = "_adjusted_noise_multiplier"


class UnsupportedOpacus(RuntimeError):  # noqa: N818
    """The installed version of Opacus lacks a part that the figures rest on."""

    def __init__(self, what: str) -> None:
        super().__init__(f"Opacus {opacus.__version__} {what}: install a version of Opacus that betastar[training] allows.")


def require_parts(owner: object, names: Sequence[str], where: str = "") -> None:
    """Refuse an object of Opacus that lacks one of its parts.

    Parameters
    ----------
    owner : object
        The module, class, model, optimizer or parameter.
    names : sequence of str
        The parts that it must have.
    where : str
        How the error message names the owner; by default the name of its class.

    Raises
    ------
    UnsupportedOpacus
        If a part is missing. The message names the part and the version of Opacus.
    """
    for name in names:
        # A model of Opacus looks for an attribute in the user's model, too, where another thing may have this name.
        there = name in {**vars(owner), **owner._modules} if isinstance(owner, nn.Module) else hasattr(owner, name)
        if not there:
            raise UnsupportedOpacus(f"has no {where or type(owner).__name__}.{name}, which the figures rest on")


def require_internals() -> None:
    """Refuse a version of Opacus whose modules and classes lack a part that betastar uses.

    Raises
    ------
    UnsupportedOpacus
        If a part is missing.
    """
    for owner, names in OF_OPACUS:
        require_parts(owner, names, where=owner.__name__)
    for name in OF_MAKE_PRIVATE:
        code = opacus.PrivacyEngine.make_private.__code__
        if name not in (*code.co_names, *code.co_varnames):
            raise UnsupportedOpacus(f"has no {name} in PrivacyEngine.make_private, which the figures rest on")

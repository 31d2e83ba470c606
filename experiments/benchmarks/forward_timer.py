"""Time spent inside the forward passes of modules, by hooks."""

import time
from typing import Any

from torch import nn

__all__ = ["ForwardTimer"]


class ForwardTimer:
    """Sums the wall time of a module's outermost forward calls while it is entered.

    Args:
        module: a module that is called as a whole.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.seconds, self.calls = 0.0, 0

    def __enter__(self) -> "ForwardTimer":
        self._handles = [
            self._module.register_forward_pre_hook(self._before),
            self._module.register_forward_hook(self._after),
        ]
        return self

    def __exit__(self, *raised: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, arguments: Any) -> None:
        self._start = time.perf_counter()

    def _after(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self.seconds += time.perf_counter() - self._start
        self.calls += 1

"""Test once per model whether its layers can be compiled, and say why if they cannot.

Compiled static passes are compared with ordinary ones on the example of `static_trial`: a short prompt
and a tree, as a whole and in parts. Logits must agree within the probe's tolerance (`probe.TOLERANCE`). A
model that fails runs operation by operation in its captured passes, which is slower, and the log says
why.
"""

import logging
import time
import weakref
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import UnsupportedModel, in_words
from treespec.models.logit_errors import errors, of_its_tokens
from treespec.models.passes.compiled_layers import CompiledLayers
from treespec.models.passes.static_pass import StaticRunner
from treespec.models.passes.static_trial import PARENTS, PARTS, PREFIX
from treespec.models.probe import TOLERANCE
from treespec.models.transformers_model import TransformersModel

log = logging.getLogger("treespec")


class Trial(NamedTuple):
    """What came out for a model.

    Args:
        layers: its compiled layers; None if they cannot be had.
        why: why not.
        seconds: time of the trial, nearly all of it for compiling.
    """

    layers: CompiledLayers | None
    why: str | None
    seconds: float


def compiled_layers(model: TransformersModel) -> Trial:
    """The compiled layers of a model; models that share its weights share them."""
    if model.model not in _TRIALS:
        start = time.perf_counter()
        try:
            layers, why = require_compiled(model), None
        except UnsupportedModel as reason:
            layers, why = None, str(reason)
            log.warning("the layers in captured passes are not compiled: %s", why)
        _TRIALS[model.model] = Trial(layers, why, time.perf_counter() - start)
    return _TRIALS[model.model]


def require_compiled(model: TransformersModel) -> CompiledLayers:
    """Compile the layers of a model, and check that static passes give the same logits with them.

    Raises:
        UnsupportedModel: if they do not, or if the compiler fails, with the reason.
    """
    model_type = model.model.config.model_type
    try:
        layers = CompiledLayers(model.model)
        expected = _logits(model.fresh())
        found = _logits(model.fresh(runner=partial(StaticRunner, layers=layers)))
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # the compiler raises errors of many classes
        why = in_words(problem, "the compiler")
        raise UnsupportedModel(f"layers of {model_type} models: {why}") from problem
    if not layers.compilations:
        raise UnsupportedModel("the compiler of PyTorch is switched off")
    error = float(errors(found, expected).max())
    tolerance = TOLERANCE.get(model.model.dtype, TOLERANCE[torch.bfloat16])
    if not error <= tolerance:
        raise UnsupportedModel(
            f"layers of {model_type} models: logits differ from those of an ordinary pass by {error:.2g} "
            f"of their norm ({tolerance:.2g} is allowed in {model.model.dtype})"
        )
    return layers


def _logits(model: TransformersModel) -> Float[Tensor, "N V"]:
    """Logits of the trial's tree, run as a whole and again in parts."""
    tokens = torch.arange(1, PREFIX + len(PARENTS) + 1, device=model.device) % model.vocab_size
    prompt, nodes = tokens[:PREFIX], tokens[PREFIX:]
    model.prefill(prompt)
    logits = [model.run(nodes, PARENTS).logits]
    model.prefill(prompt)
    for first, end in PARTS:
        logits.append(model.run(nodes[first:end], PARENTS[:end], first).logits)
    return of_its_tokens(model.model, torch.cat(logits))


_TRIALS: weakref.WeakKeyDictionary[PreTrainedModel, Trial] = weakref.WeakKeyDictionary()
"""What came out for each model."""

"""Any decoder-only model of transformers, as a model that can run the nodes of a tree."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import ContextOverflow
from treespec.kernels import drawn_children
from treespec.models.cache_view import CacheView
from treespec.models.fingerprint import fingerprint
from treespec.models.packed_weights import PackedWeights
from treespec.models.pass_kinds import EAGER, Passes
from treespec.models.probe import Finding, probe
from treespec.models.routes import OwnAttention
from treespec.models.runner import TreeRunner
from treespec.models.shortened import layer_count, shortened
from treespec.models.sublayers import Sublayer, layers_from, require_sublayers
from treespec.models.support import context_length, embedding_count

__all__ = ["TransformersModel"]


class TransformersModel:
    """A transformers model with a tree cache (`treespec.protocols.TreeModel`).

    The model is put in eval mode and probed (`treespec.models.probe`): three short passes that show that
    trees give the logits of sequential decoding. It stays set to tree attention; use `as_transformers`
    for plain calls and `generate`.

    Args:
        model: a causal language model; its dtype and device stay as they are.
        vocab_size: width of the logits, the model's own by default. What the model lacks is padded with
            the least finite number, what is too much is cut: for a pair that shares a tokenizer but pads
            its vocabularies differently. A token id beyond the model's embeddings is read as token 0;
            only a drafter meets one (the target drew it from padding that its training gave no meaning).
        attention: "auto": our attention with the best implementation for each layer, or if the model
            does not take it, the model's own under our mask. "transformers": only the latter. "triton",
            "sdpa", "two_pass", "flex", "reference": our attention with this implementation of
            `attention_masks`, or a refusal. It is meant for trees: in prompts, layers without window,
            softcap and sinks take PyTorch's causal attention whatever the name, except "reference".

    Raises:
        Unavailable: if there is no attention of this name, or it does not run on the model's device.
        UnsupportedModel: if the model cannot run trees exactly, with the reason.

    Not covered: batches, padding, and rotary scalings that change with the text's length beyond the
    original context (`max_length` ends there).
    """

    def __init__(
        self, model: PreTrainedModel, *, vocab_size: int | None = None, attention: str = "auto"
    ) -> None:
        model.eval()
        self.packed = PackedWeights(model)
        """Copies of its weights in compiled graphs, those of its parts too."""
        self._set_up(model, probe(model, attention), vocab_size, TreeRunner)

    def _set_up(
        self,
        model: PreTrainedModel,
        finding: Finding,
        vocab_size: int | None,
        runner: Callable[..., TreeRunner],
    ) -> None:
        self.model, self.finding, self.make_runner = model, finding, runner
        self.passes, self._reserved = EAGER, 0
        self._shortened: dict[frozenset[Sublayer], TransformersModel] = {}
        self._whole: PreTrainedModel | None = None
        """What this model is the first layers of, if it is made of such."""
        self.vocab_size = vocab_size or finding.vocab_size
        self.max_length = context_length(model.config)
        self._runner = runner(model, finding.route, finding.layout)
        self._embeddings, self._dtype = embedding_count(model), model.dtype

    def fresh(
        self, *, vocab_size: int | None = None, runner: Callable[..., TreeRunner] | None = None
    ) -> "TransformersModel":
        """The same weights with an empty cache of its own; not probed again.

        Args:
            vocab_size: width of the logits; as here by default.
            runner: how passes are run (`static_pass`, `compiled_runner`); as here by default.
        """
        width = vocab_size or self.vocab_size
        twin = self._twin(self.model, self.finding, width, runner or self.make_runner)
        twin.passes, twin._whole = self.passes, self._whole
        return twin

    def _twin(
        self,
        model: PreTrainedModel,
        finding: Finding,
        vocab_size: int,
        runner: Callable[..., TreeRunner],
    ) -> "TransformersModel":
        """A model of the same weights."""
        twin = object.__new__(type(self))
        twin.packed = self.packed
        twin._set_up(model, finding, vocab_size, runner)
        twin.reserve(self._reserved)
        return twin

    @cached_property
    def fingerprint(self) -> str:
        """A name for its weights (`treespec.models.fingerprint`); empty if they are not all here."""
        return fingerprint(self.model)

    @property
    def layer_count(self) -> int:
        """Decoder layers."""
        return layer_count(self.model)

    def without(self, skip: Iterable[str | Sublayer]) -> "TransformersModel":
        """A model that leaves sublayers out: the same weights, the same final norm and head.

        It has a cache of its own, whose rows are those of the shortened model. It is made once for each
        set. Its passes are eager until it is told otherwise (`treespec.models.passes.choose_passes`), and
        then for all that `without` gives of this set; compiled graphs share what copies of weights those
        of this model have.

        Args:
            skip: sublayers, or their names, such as `attention.3`; nothing gives a model of equal logits.

        Raises:
            InvalidArgument: if one is not there, or none would be left.
            UnsupportedModel: if models of this architecture cannot leave them out.
        """
        wanted = require_sublayers("skip", skip, self.layer_count)
        if wanted not in self._shortened:
            model, layout = shortened(self.model, self.finding.route, wanted)
            finding = replace(self.finding, layout=layout)
            twin = self._twin(model, finding, self.vocab_size, TreeRunner)
            kept = self.layer_count - len(wanted) // 2
            twin._whole = self.model if wanted == {*layers_from(kept, self.layer_count)} else None
            self._shortened[wanted] = twin
        return self._shortened[wanted]

    def in_cache_of(self, whole: object) -> "TransformersModel | None":
        """This model in the cache of the one whose first layers it is: committed rows are read there.

        What it is told to keep or to forget changes nothing there, and nothing is kept: its own rows are
        those of the tree in progress.

        Args:
            whole: a model that runs trees; its committed rows are those of the text.

        Returns:
            None if this model is not made of the first layers of that one, or its passes know the addresses
            of a cache of their own (captured ones).
        """
        if not isinstance(whole, TransformersModel) or whole.model is not self._whole:
            return None
        twin = self.fresh()
        if not twin._runner.any_cache:
            return None
        twin._runner.cache = CacheView(whole._runner.cache, self.finding.layout)
        return twin

    def run_by(self, runner: Callable[..., TreeRunner], passes: Passes) -> None:
        """Run passes in another way from now on, with an empty cache; see `treespec.models.passes`.

        Args:
            runner: makes what runs them.
            passes: what is said of it.
        """
        self.make_runner, self.passes = runner, passes
        self._runner = runner(self.model, self.finding.route, self.finding.layout)
        self.reserve(self._reserved)

    def reserve(self, rows: int) -> None:
        """Have caches begin with room for so many rows, so that none grows while a text is timed.

        A cache that grows is copied, and graphs that were captured with it are lost. It holds for the cache
        of this model from its next text on, and for those of all models that are made of it later (`fresh`)
        or are parts of it (`without`). What needs more rows gets them as ever.

        Args:
            rows: tokens of the longest text, and nodes of the trees behind it; 0 for none ahead.
        """
        self._reserved = self._runner.cache.least = rows
        for part in self._shortened.values():
            part.reserve(rows)

    @property
    def runner(self) -> TreeRunner:
        """What runs its passes, with its cache."""
        return self._runner

    @property
    def device(self) -> torch.device:
        """Where tokens must be."""
        return self.model.device

    @property
    def attention(self) -> str:
        """How trees enter the model: "auto", an implementation's name, or "transformers"."""
        route = self.finding.route
        return route.impl if isinstance(route, OwnAttention) else "transformers"

    @property
    def length(self) -> int:
        """Number of committed rows."""
        return self._runner.length

    @property
    def draws_by_kernel(self) -> bool:
        """Whether kernels can draw and decide by its logits: its passes are compiled, with all kernels."""
        return self.passes.kind == "compiled" and self._dtype in drawn_children.DTYPES

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget all rows, run these tokens in one pass and commit their rows; T = 0 only forgets.

        Raises:
            ContextOverflow: if there are more tokens than positions.
        """
        self._require_positions(len(tokens))
        self._runner.prefill(self._known(tokens))

    def run(
        self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0
    ) -> Float[Tensor, "T V"]:
        """Logits after nodes first .. first + T - 1; see `treespec.protocols.TreeModel.run`.

        Raises:
            InvalidTree: if parents, tokens and the nodes run so far do not fit together.
            ContextOverflow: if a node lies beyond the model's positions.
        """
        if self.length + len(parents) > self.max_length:  # only then the depth need be known
            depths = [0]
            for parent in parents[1:]:
                depths.append(depths[parent] + 1)
            self._require_positions(self.length + max(depths) + 1)
        logits = self._runner.run(self._known(tokens), parents, first)
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            return F.pad(logits, (0, missing), value=torch.finfo(logits.dtype).min)
        return logits if not missing else logits[:, : self.vocab_size]

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of these nodes, a path from node 0 down, and forget all other tree rows.

        Raises:
            InvalidTree: if the nodes are no such path, or have not been run.
        """
        self._runner.keep(nodes)

    @contextmanager
    def as_transformers(self) -> Iterator[PreTrainedModel]:
        """The plain model, with the attention that it had, for `generate` and other baselines.

        Wrappers that share its weights (`fresh`) cannot run while it is out.
        """
        ours = self.finding.route.implementation
        plain = self.finding.plain
        if plain != ours:
            self.model.set_attn_implementation(plain)
        try:
            yield self.model
        finally:
            if plain != ours:
                self.model.set_attn_implementation(ours)

    def _known(self, tokens: Tensor) -> Tensor:
        if self.vocab_size <= self._embeddings:
            return tokens
        return torch.where(tokens < self._embeddings, tokens, 0)

    def _require_positions(self, needed: int) -> None:
        if needed > self.max_length:
            raise ContextOverflow(
                f"{needed} positions are needed, but the model's context is {self.max_length}"
            )

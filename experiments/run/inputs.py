"""Encode prompts, and check before anything runs that the models of an experiment can read them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treespec.decoding import require_room
from treespec.errors import ContextOverflow, InvalidPrompt, TreespecError
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.layers import PartOfTarget
from treespec.experiments.config.model_draft import all_of, source_of
from treespec.experiments.config.schema import ModelsConfig, Prompts, TreeMethod
from treespec.experiments.config.trained import TrainedHead, heads_in
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.run.datastores import missing_datastores
from treespec.experiments.run.prompt_rows import RawPrompt
from treespec.experiments.run.prompts import Prompt, batches_of, encode
from treespec.models.codec import plain_text
from treespec.plugins import Budget
from treespec.tree import Law

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline


def read_by(
    pair: "Pair | PairOutline", raw: Sequence[RawPrompt], config: Prompts, first: int = 0
) -> list[Prompt]:
    """Encode prompts as the target of a pair reads them.

    Args:
        pair: the models, or what is known of them before their weights are loaded.
        raw: the prompts.
        config: how they are cut, and put into a chat template.
        first: index of the first prompt.

    Raises:
        PromptError: if one cannot be encoded; if the target is an encoder-decoder and a prompt has no
            source, or an encoder cannot read it.
    """
    prompts = encode(raw, config, pair.tokenizer, first, pair.target.start_tokens)
    require_sources(pair, prompts)
    return prompts


def require_sources(pair: "Pair | PairOutline", prompts: Sequence[Prompt]) -> None:
    """Refuse prompts whose source an encoder-decoder target, or one that drafts for it, cannot read.

    Raises:
        PromptError: names the prompt.
    """
    for prompt in prompts if pair.target.needs_source else ():
        if not prompt.source:
            raise PromptError(
                f"{prompt.where}: the target is an encoder-decoder and reads a source: name the field that "
                "holds it as prompts.source, of kind jsonl or hf_dataset"
            )
        try:
            pair.require_source(prompt.source)
        except TreespecError as error:
            raise PromptError(f"{prompt.where}: {error}") from None


def require_covered(experiment: Experiment, pair: "Pair | PairOutline") -> None:
    """Refuse methods and settings that encoder-decoders cannot run.

    Raises:
        ConfigError: names the method or the key, the reason and the way out.
    """
    if not getattr(pair.target, "needs_source", False):
        return
    require_own_passes(experiment.config.models)
    for i, method in enumerate(experiment.methods):
        if method.kind == "assisted":
            raise ConfigError(
                f"methods[{i}]: assisted generation is not compared on encoder-decoders: remove it"
            )
        drafts = [] if not isinstance(method.config, TreeMethod) else all_of(method.config.draft)
        for draft in drafts:
            if isinstance(draft, PartOfTarget | TrainedHead):
                reads = "skips layers" if isinstance(draft, PartOfTarget) else "reads hidden states"
                raise ConfigError(
                    f"methods[{i}].draft: {source_of(draft).name} {reads} of the target, which is not "
                    "possible with encoder-decoders: choose a draft model or a source without a model"
                )


def require_own_passes(models: ModelsConfig) -> None:
    """Refuse passes and attention that encoder-decoders do not have.

    Raises:
        ConfigError: names the key.
    """
    if models.passes in ("compiled", "captured"):
        raise ConfigError(
            f"models.passes = {models.passes!r}, but passes of encoder-decoders run operation by "
            "operation: set it to eager or auto"
        )
    if models.attention not in ("auto", "transformers"):
        raise ConfigError(
            f"models.attention = {models.attention!r}, but encoder-decoders run trees by their own "
            "attention under our mask: set it to auto or transformers"
        )


def _require_alike(experiment: Experiment, prompts: Sequence[Prompt]) -> None:
    """Refuse batches in which `generate` would pad the beginnings of an encoder-decoder's answers.

    Decoders that compute positions from the order of rows would count the padding.
    """
    if all(method.kind != "generate" for method in experiment.methods):
        return
    for batch in batches_of(prompts, experiment.config.batch):
        for prompt in batch:
            if len(prompt.ids) != len(batch[0].ids):
                raise PromptError(
                    f"{prompt.where}: its answer begins with {len(prompt.ids)} tokens, and that of "
                    f"{batch[0].where} with {len(batch[0].ids)}: `generate` decodes no such answers of "
                    f"an encoder-decoder side by side: set batch = {experiment.config.batch} to 1, or "
                    "let all answers begin alike"
                )


def _require_drafters(experiment: Experiment, pair: "Pair | PairOutline") -> None:
    """Make all drafters but plug-ins and draft models once, so that errors in their files appear early."""
    for i, method in enumerate(experiment.methods):
        if not isinstance(method.config, TreeMethod) or source_of(method.config.draft).plugged:
            continue
        draft = method.config.draft
        parts = [source for source in all_of(draft) if isinstance(source, PartOfTarget)]
        heads = list(heads_in([draft]))
        # An outline has no loaded models for drafters that run one, and is there before datastores are.
        plugged = [source for source in all_of(draft) if source_of(source).plugged]
        needs = [*parts, *heads, *plugged, *method.draft_models, *missing_datastores([method])]
        possible = hasattr(pair.target, "fresh") or not needs
        try:
            for part in parts:
                part.skipped(pair.target.layer_count)
            if possible and (parts or heads or isinstance(method.tree, Budget)):
                for sampling in method.choices:
                    # Sources without models need a vocabulary and tokenizer, which an outline has too.
                    method.drafter(pair, sampling)  # pyrefly: ignore[bad-argument-type]
        except TreespecError as error:
            raise ConfigError(f"methods[{i}].draft: {error}") from None


def require_fits(
    experiment: Experiment,
    pair: "Pair | PairOutline",
    measured: Sequence[Prompt],
    spare: Sequence[Prompt] = (),
) -> None:
    """Check, before anything runs, that prompts fit in every context and trees in the vocabulary.

    `spare`: prompts that are not measured, on which settings are tuned.

    Raises:
        PromptError: if one does not fit; names the prompt and the method.
        ConfigError: if encoder-decoders do not cover a method; or if a file of a draft source is missing,
            damaged, or belongs to another model.
    """
    require_covered(experiment, pair)
    _require_drafters(experiment, pair)
    if getattr(pair.target, "needs_source", False):
        _require_alike(experiment, measured)
    prompts = [*measured, *spare]
    for method in experiment.methods:
        drafts = None in method.draft_models or method.kind == "assisted"
        lengths = [m.max_length for m in ((pair.target, pair.draft) if drafts else (pair.target,))]
        lengths += [
            pair.others[name].max_length for name in method.own_models if name in pair.others
        ]
        if isinstance(method.config, TreeMethod) and hasattr(pair.target, "fresh"):
            heads = heads_in([method.config.draft])
            lengths += [head.head(pair.target).max_length for head in heads]
        for prompt in prompts:
            try:
                require_room(
                    len(prompt.ids),
                    experiment.config.max_new_tokens,
                    method.max_depth,
                    min(lengths),
                )
            except TreespecError as error:
                way = "; prompts.tokens cuts prompts" * isinstance(error, ContextOverflow)
                raise PromptError(f"{prompt.where}, method {method.name!r}: {error}{way}") from None
        require_readable(method, pair, prompts)
        laws = {choice.law for choice in method.choices.values()}
        widest = max(map(len, method.shape.children)) if method.shape else 0
        if laws - {Law.IID} and widest > pair.draft.vocab_size:
            raise PromptError(
                f"method {method.name!r}: {widest} distinct children of one node, but the draft's "
                f"vocabulary has {pair.draft.vocab_size} tokens"
            )


def require_readable(
    method: BuiltMethod | None, pair: "Pair | PairOutline", prompts: Sequence[Prompt]
) -> None:
    """Refuse prompts that spell out a special token of a draft of another tokenizer.

    `method`: whose drafts read the prompts; None for the pair's draft model alone.

    Raises:
        PromptError: names the prompt and the method.
    """
    names = (None,) if method is None else method.draft_models
    by = "" if method is None else f", method {method.name!r}"
    models = (pair.draft if name is None else pair.others.get(name) for name in names)
    for shared in [vars(model).get("shared") for model in models if model is not None]:
        if shared is None:
            continue
        for prompt in prompts:
            try:
                plain_text(shared.target, shared.draft, prompt.ids)
            except InvalidPrompt as error:
                raise PromptError(f"{prompt.where}{by}: {error}") from None

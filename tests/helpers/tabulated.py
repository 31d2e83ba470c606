"""A tiny transformer whose rows are tabulated, so that drafts by parts of it can be enumerated exactly."""

from collections.abc import Iterable
from functools import cache

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treespec.models.transformers_model import TransformersModel
from treespec.testing import TabularModel


class Tabulated(TabularModel):
    """A transformer whose rows are computed once, each in sequence, and looked up from then on.

    Norms are float32 whatever the weights are: a row differs by 1e-8 from pass to pass. A table does not.
    """

    def __init__(self, model: TransformersModel) -> None:
        self.layer_count = model.layer_count
        self.without_these = cache(lambda names: Tabulated(model.without(sorted(names))))

        @cache
        def row(context: tuple[int, ...]) -> torch.Tensor:
            *before, last = context
            model.prefill(torch.tensor(before, dtype=torch.long))
            return model.run(torch.tensor([last]), (-1,)).logits[0].double()

        super().__init__(row, model.vocab_size)

    def fresh(self) -> TabularModel:
        """A plain table of the same rows."""
        return TabularModel(self.row, self.vocab_size)

    def without(self, skip: Iterable[object]) -> "Tabulated":
        """The table of the model without these sublayers."""
        return self.without_these(frozenset(map(str, skip)))


@cache
def tiny_transformer(vocab: int) -> Tabulated:
    """Of two layers, whose parts give rows far from each other's."""
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = LlamaForCausalLM(config).double()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim > 1:
                    scale = 0.2 if "embed" in name else 0.8 if "head" in name else 2.5
                    weight.copy_(torch.randn_like(weight) * scale * weight.shape[-1] ** -0.5)
    return Tabulated(TransformersModel(model))

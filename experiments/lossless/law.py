"""Temperature above 0: compare samples of a method with plain decoding, by `treespec.testing.compare`.

All samples come from the real `decode`, a text of a few tokens each; on a CPU by models that remember their
passes (`check_passes`), on CUDA by the parts of a run. They are compared with the law of
plain decoding itself: rows of the unmodified model in ordinary transformers passes, without our attention,
cache or loop. That is what infinitely many plain samples would give.

Under truncations (top-k, top-p and others) a lossless method can fail by rounding, in float32 and float64
too: a pass over a tree and an ordinary pass round differently, so that a token within rounding of the cut
can be kept by one and cut off by the other. The exact law then calls the token impossible, and its first
occurrence gives p = 0. The stated false-alarm rate does not include this. There is no tolerance for it,
because the size of the rounding error depends on the target. A check with another cut tells the two
apart: a loss shows again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.decoding import decode
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.lossless.check_passes import PassMemory, RememberingModel
from treespec.experiments.lossless.samples import KeptSamples, Texts
from treespec.experiments.run.baselines import next_logits
from treespec.experiments.run.prompts import Prompt, behind
from treespec.experiments.run.seeds import seed_of
from treespec.protocols import TreeModel
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling
from treespec.sampling.processing.rows import processed_row
from treespec.target import make_target
from treespec.testing.compare import LawComparison, compare_laws
from treespec.verify import verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair

SAMPLES_PER_SIGN = 50
"""Samples between two updates of progress."""


@dataclass(frozen=True)
class LawCheck:
    sampling: str
    method: str
    rule: str
    lossless: bool
    comparison: LawComparison
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether a rule claims to be lossless but is not; a lossy rule cannot fail."""
        return self.lossless and not self.comparison.passed


class _Remembering(NamedTuple):
    target: RememberingModel
    draft: TreeModel
    others: Mapping[str, RememberingModel]
    tokenizer: object
    source: tuple[int, ...] | None

    @classmethod
    def of(cls, pair: "Pair", memory: PassMemory) -> "_Remembering":
        """The models of a pair; the target's passes are remembered by all pairs of one memory."""
        from treespec.models.load import NoDraftModel

        return cls(
            RememberingModel(pair.target, memory, pair.source or ()),
            pair.draft if isinstance(pair.draft, NoDraftModel) else RememberingModel(pair.draft),
            {name: RememberingModel(model) for name, model in pair.others.items()},
            pair.tokenizer,
            pair.source,
        )


def as_a_run(pair: "Pair") -> bool:
    """Whether texts are decoded by the very parts of a run, which cannot remember: on CUDA.

    There passes are captured graphs, whose scores are lent, static drafts are one graph, and acceptance is
    a kernel that moves rows before the host knows its verdict. All that is what is to be checked.
    """
    return pair.target.device.type == "cuda"


def _models_of(pair: "Pair", memory: PassMemory) -> "Pair | _Remembering":
    """The models that texts are decoded by."""
    return pair if as_a_run(pair) else _Remembering.of(pair, memory)


class LawChecker:
    """Samples methods after the same prompts, and compares them with plain decoding."""

    def __init__(
        self,
        pair: "Pair",
        prompts: Sequence[Prompt],
        *,
        samples: int,
        tokens: int,
        seed: int = 0,
        kept: KeptSamples | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.pair, self.prompts, self.tokens, self.seed = pair, prompts, tokens, seed
        self.memory = PassMemory()
        self._each = -(-samples // len(prompts))  # rounded up, to equal numbers for all prompts
        self._models = _models_of(pair, self.memory)
        self._kept, self._progress = kept, progress

    def check(self, method: BuiltMethod, name: str, *, false_alarm: float) -> LawCheck:
        sampling, rule = method.choices[name].sampling, method.choices[name].rule
        texts, seconds = self._texts(method, name)
        comparison = compare_laws(
            texts, partial(self._plain_law, sampling), given=1, false_alarm=false_alarm,
            seed=seed_of(self.seed, "redraws", name, method.name) % 2**32,
        )  # fmt: skip
        return LawCheck(name, method.name, str(rule), rule.lossless, comparison, seconds)

    def _go_to(self, prompt: Prompt) -> None:
        """Put the models behind the source of a prompt."""
        pair, self.pair = self.pair, behind(self.pair, prompt)
        if self.pair is not pair:
            self._models = _models_of(self.pair, self.memory)

    @torch.inference_mode()
    def _plain_law(self, sampling: Sampling, prefix: tuple[int, ...]) -> Float[Tensor, "V"]:
        """The law of the next token, by an ordinary transformers pass over the context.

        The prefix is the prompt's number, followed by the tokens after the prompt.
        """
        prompt, *tokens = prefix
        self._go_to(self.prompts[prompt])
        ids = [*self.prompts[prompt].ids, *tokens]
        length = len(self.prompts[prompt].ids)
        return sampling(processed_row(sampling, next_logits(self.pair, ids), ids, length))

    def _texts(self, method: BuiltMethod, name: str) -> Texts:
        """The texts after all prompts, as rows of the prompt's number and the tokens after the prompt."""
        batches: list[Texts] = []
        for i in range(len(self.prompts)):
            texts = None if self._kept is None else self._kept.of(name, method.name, i)
            if texts is None:
                texts = self._sampled(method, name, i)
                if self._kept is not None:
                    self._kept.add(name, method.name, i, texts)
            batches.append(texts)
        return Texts(
            [row for texts in batches for row in texts.rows],
            sum(texts.seconds for texts in batches),
        )

    def _sampled(self, method: BuiltMethod, name: str, i: int) -> Texts:
        self._go_to(self.prompts[i])
        choice, drafter = method.choices[name], method.drafter(self._models, name)
        target, start, rows = make_target(self._models.target), time.perf_counter(), []
        verifier = verifier_for(choice.rule, self._models.target)
        coins = TorchCoins(seed_of(self.seed, "samples", self.prompts[i].key, name, method.name))
        ids = torch.tensor(self.prompts[i].ids, dtype=torch.long, device=self.pair.target.device)
        for count in range(self._each):
            if count % SAMPLES_PER_SIGN == 0:
                self._progress(f"{name}: {method.name}, prompt {i + 1}/{len(self.prompts)}")
            steps = decode(
                target, drafter, verifier, ids, sampling=choice.sampling, coins=coins,
                max_new_tokens=self.tokens,
            )  # fmt: skip
            rows.append([i, *(token for step in steps for token in step.tokens)])
        return Texts(rows, time.perf_counter() - start)

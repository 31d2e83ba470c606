"""Tables in exact arithmetic."""

from fractions import Fraction

from jaxtyping import Float
from torch import Tensor

from treespec.models.tabular import TabularModel
from treespec.sampling.distributions import Sampling
from treespec.testing.rationals import Rationals


class AsGiven(Sampling):
    """The sampling setting of models whose rows are already probabilities: it changes nothing."""

    def __call__(self, logits: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
        """The rows, unchanged."""
        return logits

    def rows(  # pyrefly: ignore[bad-override]
        self, logits: Float[Tensor, "N V"], model: str = "target"
    ) -> Float[Tensor, "N V"]:
        """The rows, unchanged."""
        return logits


def exactly(
    model: TabularModel, sampling: Sampling, denominator: int | None = None
) -> TabularModel:
    """A table whose rows are the model's probabilities as fractions that sum to 1.

    `sampling`: sampling setting, applied in floats. A rule that is exact for all tables is exact for these
    fractions too. `denominator`: round the probabilities to fractions with at most this denominator, which
    keeps the numbers of an enumeration short. Zeros stay zeros, and equal rows stay equal.
    """
    cache: dict[tuple[int, ...], Rationals] = {}

    def row(context: tuple[int, ...]) -> Rationals:
        if context not in cache:
            probs = [Fraction(x) for x in sampling(model.row(context)).tolist()]
            if denominator is not None:
                least = Fraction(1, denominator)
                probs = [max(x.limit_denominator(denominator), least) if x else x for x in probs]
            total = sum(probs)
            cache[context] = Rationals([x / total for x in probs])
        return cache[context]

    return TabularModel(row, model.vocab_size, model.max_length)

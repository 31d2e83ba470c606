"""Compare two families of methods, such as all trees with all chains: which questions, and their answers.

The best of many methods looks better than it is on the prompts used to choose it. Therefore each side of a
comparison is chosen on one half of the prompts and measured on the other half, and vice versa, and this is
averaged over the halvings of the prompts (`report.halvings`): no order of prompts or methods changes a bit
of the answer. Excerpts of one file are one sample. The interval is that of a single look, or for a run with
`until` the repeated interval of its looks (`report.sequential`).

So the answer is about choosing: "the best tree, as chosen on half of such prompts, is 1.08 times as fast as
the best chain so chosen". That one tree is faster than every chain is another statement, and is made only
where the joint intervals of all pairs show it (`report.joint`).

The questions are those of the config's `compare`. Without it, or where one source drafts both, trees are
compared with chains; the best of them is always compared with plain decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treespec.experiments.config.questions import Picked, label_of_side, picked
from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.report.halvings import fit
from treespec.experiments.report.joint import Faster, over_all
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import FEWEST_FOR_INTERVAL, FEWEST_FOR_WINNER
from treespec.experiments.report.table import Cell, Column, Finding, Table
from treespec.search.intervals import Interval

PLAIN_DECODING = "plain decoding"


@dataclass(frozen=True)
class Family:
    """Methods that compete for one side of a comparison.

    Args:
        name: of the family, such as `trees`.
        best: of its best method, such as `the best tree`.
        every: of all of them as rivals, such as `every chain`.
        methods: names of its methods.
    """

    name: str
    best: str
    every: str
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """Two families, and how a sentence says that the left one, the right one, or neither is faster."""

    left: Family
    right: Family
    won: str
    lost: str
    undecided: str


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a family of methods, and those chosen often, the most often first."""

    family: Family
    chosen: tuple[str, ...]

    @property
    def label(self) -> str:
        return " or ".join(self.chosen)


@dataclass(frozen=True)
class Comparison:
    """Two sides, each measured on the half of the prompts that did not choose it.

    Args:
        question: what was asked.
        left, right: the sides.
        ratio: tokens per second (prefill excluded), or tokens per step, of left over right.
        at_once: the same with the interval of a single look; another one than `ratio` in runs with `until`.
        prompts: number of compared prompts.
        samples: number of independent samples among them: files, if several prompts are excerpts of one.
        left_over_all, right_over_all: the method of one side that is jointly faster than every method of
            the other, if there is one.
    """

    question: Question
    left: Side
    right: Side
    ratio: Interval
    at_once: Interval
    prompts: int
    samples: int
    left_over_all: Faster | None = None
    right_over_all: Faster | None = None

    @property
    def enough(self) -> bool:
        """Whether there are enough samples to name a winner."""
        return self.samples >= FEWEST_FOR_WINNER

    @property
    def winner(self) -> Side | None:
        if not self.enough or self.ratio.contains(1.0):
            return None
        return self.left if self.ratio.estimate > 1 else self.right

    @property
    def outcome(self) -> str:
        if not self.enough:
            return f"fewer than {FEWEST_FOR_WINNER}"
        if self.winner is None:
            return "not decided"
        return "faster" if self.winner is self.left else "slower"


COLUMNS = (
    Column[Comparison]("", lambda duel: duel.left.family.best, left=True),
    Column[Comparison]("chosen", lambda duel: duel.left.label, left=True),
    Column[Comparison]("against", lambda duel: duel.right.family.best, left=True),
    Column[Comparison]("chosen", lambda duel: duel.right.label, left=True),
    Column[Comparison](
        "times as fast", lambda duel: Cell(f"{duel.ratio.estimate:.3f}", value=duel.ratio)
    ),
    Column[Comparison]("95 % interval", lambda duel: duel.ratio.bounds(3)),
    Column[Comparison]("", lambda duel: duel.outcome, left=True),
)


def comparison_finding(duels: Mapping[str, Sequence[Comparison]]) -> Finding | None:
    tables = [Table(sampling, COLUMNS, rows) for sampling, rows in duels.items() if rows]
    note = "Chosen and measured on different halves of the prompts, with intervals as those of the verdict."
    return Finding("Comparisons", tables, (note,)) if tables else None


def compare(data: Measurements, question: Question, cost: str = "decode_s") -> Comparison | None:
    """Compare the best method of one family with the best of another.

    Returns:
        The comparison; None if a family is empty or there are too few independent samples for an interval.
    """
    # by name: of methods that do exactly alike, the one that is named does not depend on the config's order
    names = sorted(question.left.methods), sorted(question.right.methods)
    if not all(names) or data.samples < FEWEST_FOR_INTERVAL:
        return None
    tables = {name: data.samples_of(name, cost) for side in names for name in side}
    fitted = fit(*([tables[name] for name in side] for side in names))
    all_left, all_right = None, None
    if data.samples >= FEWEST_FOR_WINNER:
        all_left, all_right = over_all(tables, *names, data.boundary)
    left, right = (
        Side(family, tuple(known[method] for method in chosen))
        for family, known, chosen in (
            (question.left, names[0], fitted.left),
            (question.right, names[1], fitted.right),
        )
    )
    ratio = fitted.ratio.interval(data.boundary)
    at_once, prompts = fitted.ratio.interval(), len(data.prompts)
    return Comparison(
        question, left, right, ratio, at_once, prompts, data.samples, all_left, all_right
    )


def trees_and_chains(trees: Sequence[str], chains: Sequence[str]) -> Question:
    return Question(
        Family("trees", "the best tree", "every tree", tuple(trees)),
        Family("chains", "the best chain", "every chain", tuple(chains)),
        "Trees beat chains",
        "Chains beat trees",
        "No winner between trees and chains",
    )


def speculation(data: Measurements) -> Question:
    """The best speculative method against the faster kind of plain decoding, as chosen alike."""
    rivals = tuple(data.named("tree", "chain", "assisted"))
    return Question(
        Family("speculation", "the best speculative method", "every speculative method", rivals),
        Family("plain", PLAIN_DECODING, PLAIN_DECODING, tuple(data.named("plain"))),
        "Speculation pays",
        "Speculation does not pay",
        "Speculation makes no proven difference",
    )


def asked(run: RunRecords, data: Measurements) -> list[Question]:
    """The questions of the config's `compare`, with the methods that finished a prompt."""

    def side(written: Any) -> tuple[str, list[str]]:
        found = [m for m in data.methods if picked(written, _features(m))]
        # A lossy method competes only if asked for by its rule, or if there is no lossless one.
        by_rule = not isinstance(written, str) and written.get("rule") is not None
        lossless = [m for m in found if m.lossless]
        return label_of_side(written), [m.name for m in (found if by_rule else lossless or found)]

    entries = run.manifest["config"].get("compare") or ()
    return [between(side(entry["left"]), side(entry["right"])) for entry in entries]


def between(left: tuple[str, Sequence[str]], right: tuple[str, Sequence[str]]) -> Question:
    """The question which of two named families is faster."""
    one, other = (
        Family(name, f"the best of {name}", f"every method of {name}", tuple(methods))
        for name, methods in (left, right)
    )
    return Question(
        one,
        other,
        won=f"{one.name} is faster than {other.name}",
        lost=f"{other.name} is faster than {one.name}",
        undecided=f"No winner between {one.name} and {other.name}",
    )


def duels(run: RunRecords, data: Measurements) -> list[tuple[Question, Comparison | None]]:
    """What the verdict answers: the questions of the config, and trees against chains if these are due."""
    own = asked(run, data)
    questions = [*own, trees_against_chains(data)] if not own or _both_ways(data) else own
    return [(question, compare(data, question)) for question in questions]


def trees_against_chains(data: Measurements) -> Question:
    return trees_and_chains(data.named("tree"), data.named("chain", "assisted"))


def comparisons(run: RunRecords, data: Measurements) -> list[Comparison]:
    """All comparisons of the report: those of the verdict, and of our methods with each baseline."""
    trees, chains, assisted = (data.named(group) for group in ("tree", "chain", "assisted"))
    ours = Family("ours", "the best of our chains and trees", "ours", tuple(trees + chains))
    questions = []
    if assisted:
        own_chains = Family("our chains", "the best of our own chains", "ours", tuple(chains))
        tree = trees_and_chains(trees, ()).left
        baseline = Family("assisted", "assisted generation", "assisted", tuple(assisted))
        questions = [_plainly(tree, own_chains), _plainly(ours, baseline)]
    for name in data.named("plain"):
        questions.append(_plainly(ours, Family("plain", f"plain decoding ({name})", name, (name,))))
    found = [duel for _, duel in duels(run, data)] + [compare(data, q) for q in questions]
    return [duel for duel in found if duel is not None]


def _plainly(left: Family, right: Family) -> Question:
    return Question(left, right, "", "", "")


def _both_ways(data: Measurements) -> bool:
    """Whether one source drafts a chain and a tree."""
    sources = [
        {m.source for m in data.methods if m.lossless and m.group == group}
        for group in ("tree", "chain")
    ]
    return bool(sources[0] & sources[1])


def _features(method: Method) -> Picked:
    return Picked(method.name, method.group, method.source, sorted(set(method.rule.values())))


def to_data(duel: Comparison) -> dict[str, Any]:
    """A comparison as `--json` prints it."""
    return {
        "left": _side_data(duel.left),
        "right": _side_data(duel.right),
        "ratio": duel.ratio,
        "prompts": duel.prompts,
        "samples": duel.samples,
        "winner": None if duel.winner is None else duel.winner.family.best,
        "left_faster_than_all": duel.left_over_all,
        "right_faster_than_all": duel.right_over_all,
    }


def _side_data(side: Side) -> dict[str, Any]:
    return {"family": side.family.best, "chosen": side.chosen, "methods": side.family.methods}

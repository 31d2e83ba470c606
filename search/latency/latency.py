"""How long a step takes: measured times of this pair on this machine, and the sum of them for any shape."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from treespec.search.arguments import (
    COUNT,
    MAPPING,
    PATH,
    PREFIX,
    SHAPE,
    TEXT,
    Kind,
    maybe,
    shown,
    takes,
)
from treespec.search.latency.errors import InvalidLatency, NotMeasured
from treespec.search.latency.file import model_of_tables, read_file, read_json, write_json
from treespec.search.latency.step_parts import StepParts, seconds_of
from treespec.search.latency.tables import ANY_LAW, BatchTimes, LawTimes, middle_prefix
from treespec.shape import TreeShape
from treespec.tree import Law
from treespec.whole_file import write_whole

__all__ = ["LatencyModel"]

_CHECKED = takes(
    NotMeasured,
    size=COUNT, width=COUNT, prefix=maybe(PREFIX), batch=COUNT, law=maybe(TEXT), shape=SHAPE,
)  # fmt: skip
"""Of questions to a model: what is of another kind was not measured."""


def _models(value: Any) -> bool:
    """Whether a value is a mapping of whole numbers to latency models."""
    return isinstance(value, Mapping) and all(
        COUNT.holds(batch) and isinstance(model, LatencyModel) for batch, model in value.items()
    )


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """Times of the parts of a step, measured, and the time of a step of any static shape.

        step = first draft pass + one pass for each further level, by the nodes that it expands
             + further children drawn + assembling + verify(size) + accept(size) + commit(size) + rest

    Sequoia (arXiv:2402.12374, section 3.4) takes t(n) of the target and a constant draft pass; ours also
    knows that wide levels cost more than narrow ones, and what the loop itself costs. Samples are kept, so
    that what is predicted from them has an interval. Times are monotone in the size but where a fall
    is proved (`treespec.search.latency.interpolation.Curve`), linear between measured sizes and
    prefixes, and never extrapolated.

    `treespec profile` measures one; `from_tables` takes published times; `load` reads a file.

    Args:
        batches: the times by batch size.
        about: what they were measured on: hardware, versions, pair, dtype, threads, date.
        disturbed: what else used the machine meanwhile, as a sentence with numbers; None if nothing did, or
            it is not known.

    Raises:
        InvalidLatency: if there are times for no batch size, or `disturbed` is no sentence.
    """

    batches: Mapping[int, BatchTimes]
    about: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    disturbed: str | None = None

    def __post_init__(self) -> None:
        """Refuse a model of nothing."""
        if not isinstance(self.batches, Mapping) or not self.batches:
            raise InvalidLatency("a latency model needs the times of at least one batch size")
        if self.disturbed is not None and not (isinstance(self.disturbed, str) and self.disturbed):
            raise InvalidLatency(
                f"disturbed = {shown(self.disturbed)}, but must be a sentence, or None"
            )

    @classmethod
    @takes(InvalidLatency, law=TEXT, batch=COUNT, about=maybe(MAPPING))
    def from_tables(
        cls,
        *,
        verify: Any,
        draft: Any,
        first: Any = None,
        draw: Any = 0.0,
        assemble: Any = 0.0,
        accept: Any = 0.0,
        commit: Any = 0.0,
        rest: Any = 0.0,
        plain: Any = None,
        law: str = ANY_LAW,
        batch: int = 1,
        about: Mapping[str, Any] | None = None,
    ) -> "LatencyModel":
        """Times typed in by hand, in seconds.

        A table is one number, which holds for every size; `{size: time}`; or `{prefix: {size: time}}`. A
        time is a number or a list of repeated measurements. `first` and `plain` do not depend on a size:
        a number, or `{prefix: time}`. What is left out counts as nothing.

        Args:
            verify: the target's pass, by nodes, the root included.
            draft: a draft pass, by the nodes that it expands.
            first: the first draft pass, if it takes another time than one over one node.
            draw: drawing one more child, by the nodes that it is drawn for.
            assemble: the rest of drafting, by nodes.
            accept: the acceptance rule, by nodes.
            commit: keeping the accepted rows, by nodes.
            rest: what a step takes besides.
            plain: a step of plain decoding, if it is not the sum of its parts.
            law: name of the law that the draft's times hold for.
            batch: texts that are decoded at once.
            about: where the times are from.

        Raises:
            InvalidLatency: naming the table and the value that is no time.

        Example:
            >>> model = LatencyModel.from_tables(verify={1: 0.020, 16: 0.024}, draft={1: 0.002})
            >>> round(model.step_s(TreeShape.chain(3)), 4)
            0.0268
        """
        tables = {
            "verify": verify, "draft": draft, "first": first, "draw": draw, "assemble": assemble,
            "accept": accept, "commit": commit, "rest": rest, "plain": plain,
        }  # fmt: skip
        return cls(model_of_tables(tables, law, batch), dict(about or {}))

    @classmethod
    @takes(InvalidLatency, models=Kind("a mapping of batch sizes to models", _models))
    def of_batches(cls, models: Mapping[int, "LatencyModel"]) -> "LatencyModel":
        """One model of several, each of which says its times for one batch size.

        Raises:
            NotMeasured: if a model has no times for its batch size.
            InvalidLatency: if there is no model.
        """
        batches = {batch: models[batch].times(batch) for batch in sorted(models)}
        said = dict.fromkeys(model.disturbed for model in models.values() if model.disturbed)
        about = next((model.about for model in models.values()), {})
        return cls(batches, about, " ".join(said) or None)

    @property
    def max_size(self) -> int | None:
        """The largest tree that a verify time is known for, batch 1 or the smallest; None: no bound."""
        batch = min(self.batches)
        return self.times(batch).verify.largest(self.prefix_at(None, batch))

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Prefix lengths that were measured; none if times hold for all."""
        return self.times(min(self.batches)).verify.prefixes

    @property
    def middle_prefix(self) -> int | None:
        """The prefix that is meant where none is given, of the smallest batch; None: times hold for all."""
        return self.prefix_at(None, min(self.batches))

    @takes(InvalidLatency, prefix=maybe(PREFIX), batch=COUNT)
    def prefix_at(self, prefix: int | None, batch: int = 1) -> int | None:
        """The prefix itself; or, for None, the middle one of those that all times of a batch size cover.

        One for all tables, so that no step is the sum of times behind different prefixes.

        Args:
            prefix: committed tokens before the root, or None.
            batch: texts at once.

        Returns:
            The prefix; None if times hold behind all.

        Raises:
            NotMeasured: if there are no times for the batch size.
        """
        return middle_prefix(self.times(batch)) if prefix is None else prefix

    @property
    def laws(self) -> tuple[str, ...]:
        """Names of the laws with times; `"any"` for all."""
        return tuple(dict.fromkeys(law for times in self.batches.values() for law in times.laws))

    @property
    def round_count(self) -> int:
        """Rounds in which everything was measured once; 0 if they are not known."""
        return max(times.round_count for times in self.batches.values())

    @takes(InvalidLatency, batch=COUNT)
    def times(self, batch: int = 1) -> BatchTimes:
        """The times of a batch size.

        Raises:
            NotMeasured: if there are none.
        """
        if batch not in self.batches:
            raise NotMeasured(
                f"batch = {batch}, but times are known for {', '.join(map(str, self.batches))}: "
                "type them in (`LatencyModel.from_tables(..., batch=)`, `of_batches`)"
            )
        return self.batches[batch]

    @takes(InvalidLatency, law=maybe(TEXT), batch=COUNT)
    def law_times(self, law: str | None = None, batch: int = 1) -> LawTimes:
        """The times of a law; without one, the only ones that there are.

        Raises:
            NotMeasured: if there are none, or several and no law is named.
        """
        laws = self.times(batch).laws
        matching = laws.get(str(law)) or laws.get(ANY_LAW)
        if law is None and len(laws) == 1:
            matching = next(iter(laws.values()))
        if matching is None:
            wanted = "no law is named" if law is None else f"law = {str(law)!r}"
            raise NotMeasured(
                f"{wanted}, but times are known for {', '.join(laws)}: "
                "name one of them, or profile a config that uses it"
            )
        return matching

    @_CHECKED
    def largest(
        self, prefix: int | None = None, *, law: str | None = None, batch: int = 1
    ) -> int | None:
        """The largest tree that all parts of a step are known for; None: no bound."""
        times, law_times = self.times(batch), self.law_times(law, batch)
        prefix = self.prefix_at(prefix, batch)
        tables = (times.verify, times.commit, times.rest, law_times.assemble, law_times.accept)
        ends = [end for table in tables if (end := table.largest(prefix)) is not None]
        return min(ends, default=None)

    @_CHECKED
    def verify_s(self, size: int, prefix: int | None = None, *, batch: int = 1) -> float:
        """Seconds of the target's pass over a tree of `size` nodes, the root included.

        Args:
            size: nodes.
            prefix: committed tokens before the root; None for the middle one of those measured.
            batch: texts at once.

        Raises:
            NotMeasured: outside of what was measured.
        """
        return self.times(batch).verify.at(size, self.prefix_at(prefix, batch))

    @_CHECKED
    def draft_level_s(
        self, width: int, prefix: int | None = None, *, law: str | None = None, batch: int = 1
    ) -> float:
        """Seconds of a draft pass that gives each of `width` nodes a child.

        Args:
            width: nodes that the pass runs.
            prefix: committed tokens before the root; None for the middle one of those measured.
            law: how children are drawn; None if the model knows one law.
            batch: texts at once.

        Returns:
            Seconds of a pass below the first.

        Raises:
            NotMeasured: outside of what was measured.
        """
        return self.law_times(law, batch).level.at(width, self.prefix_at(prefix, batch))

    @_CHECKED
    def plain_s(
        self, prefix: int | None = None, *, law: str | None = None, batch: int = 1
    ) -> float:
        """Seconds of a step of plain decoding by the same loop, under the sampling of `law`.

        Args:
            prefix: committed tokens before the root; None for the middle one of those measured.
            law: whose sampling settings and times are taken; None if the model knows one law.
            batch: texts at once.

        Returns:
            Seconds of one token of each text.

        Raises:
            NotMeasured: outside of what was measured.
        """
        return float(seconds_of(self.at(prefix, law, batch).plain())[0])

    @_CHECKED
    def step_s(
        self,
        shape: TreeShape,
        prefix: int | None = None,
        *,
        law: str | None = None,
        batch: int = 1,
    ) -> float:
        """Seconds of a whole step of a static shape; of the root alone, a step of plain decoding.

        Args:
            shape: the tree that is drafted at every step.
            prefix: committed tokens before the root; None for the middle one of those measured.
            law: how children are drawn; None if the model knows one law.
            batch: texts at once.

        Raises:
            NotMeasured: naming the table, what was asked of it, its range and the way out.
        """
        times = self.at(prefix, law, batch)
        return float(seconds_of(times.plain() if shape.size == 1 else times.tree([shape]))[0])

    @_CHECKED
    def parts_s(
        self,
        shape: TreeShape,
        prefix: int | None = None,
        *,
        law: str | None = None,
        batch: int = 1,
    ) -> dict[str, float]:
        """Seconds of a step by stage: draft, verify, accept, commit and the rest; together `step_s`.

        Of the root alone, plain decoding, nothing is drafted; where its step was measured as a whole,
        `verify` is what the other stages leave of it.

        Args:
            shape: the tree that is drafted at every step.
            prefix: see `step_s`.
            law: see `step_s`.
            batch: see `step_s`.

        Raises:
            NotMeasured: see `step_s`.
        """
        return self.at(prefix, law, batch).parts(shape)

    def at(self, prefix: int | None = None, law: str | None = None, batch: int = 1) -> StepParts:
        """What steps under these circumstances are the sums of; arguments as of `step_s`.

        Raises:
            NotMeasured: if there are no times for the law or the batch size.
        """
        law_times, times = self.law_times(law, batch), self.times(batch)
        name = next(iter(times.laws)) if law is None else str(law)
        together = name == Law.DETERMINISTIC.value
        return StepParts(times, law_times, self.prefix_at(prefix, batch), together)

    def to_json(self) -> str:
        """JSON in milliseconds, with the unit in the names of the keys; readable and writable by hand."""
        return write_json(self.batches, self.about, self.disturbed)

    @classmethod
    @takes(InvalidLatency, text=TEXT)
    def from_json(cls, text: str, source: str = "latency JSON") -> "LatencyModel":
        """Read what `to_json` wrote, or somebody typed.

        Args:
            text: the JSON.
            source: what to call it in messages.

        Raises:
            InvalidLatency: naming the source, the key, the value and what is allowed.
        """
        return cls(*read_json(text, source))

    @takes(InvalidLatency, path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the JSON to a file."""
        path = Path(path)
        return write_whole(path, self.to_json())

    @classmethod
    @takes(InvalidLatency, path=PATH)
    def load(cls, path: str | Path) -> "LatencyModel":
        """Read a file.

        Raises:
            InvalidLatency: if there is none, or it holds something else.
        """
        return cls(*read_file(path))

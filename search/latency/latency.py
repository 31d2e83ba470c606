"""Predict how long a step of any shape takes from the measured times of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float

from treespec.errors import Unreadable
from treespec.files import read_text, write_whole
from treespec.search.errors import InvalidLatency, NotMeasured
from treespec.search.intervals import draws
from treespec.search.latency.file import read_json, typed_tables, write_json
from treespec.search.latency.interpolation import Curve, Term
from treespec.search.latency.step_parts import ANY_LAW, StepParts, require_time, seconds_of
from treespec.tree import Law
from treespec.tree.shape import TreeShape


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """Measured times of the parts of a step, and the predicted time of a step of any static shape.

        step = first draft pass + one pass for each further level, by the nodes that it expands
             + further children drawn + assembling + verify(size) + accept(size) + commit(size) + rest

    Sequoia (arXiv:2402.12374, section 3.4) takes t(n) of the target and a constant draft pass; ours also
    accounts for the higher cost of wide levels and for the cost of the loop itself. Samples are kept, so
    that predictions have intervals. Times are monotone in the size except where a fall is significant
    (`treespec.search.latency.interpolation.Curve`), linear between measured sizes and prefixes, and never
    extrapolated.

    In a batch, times are of a whole round: of one step of every text, in which each text has a tree of this
    size. Sizes and widths are those of one text.

    `treespec profile` measures a model; `from_tables` takes published times; `load` reads a file.

    Args:
        batches: the times by batch size and name of the law; `"any"` for times that hold for all laws.
        about: where they were measured: hardware, versions, pair, dtype, threads, date.
        disturbed: a sentence, with numbers, on other processes that used the machine during the
            measurement; None if there were none, or this is not known.

    Raises:
        InvalidLatency: if there are no times.
    """

    batches: Mapping[int, Mapping[str, StepParts]]
    about: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    disturbed: str | None = None

    def __post_init__(self) -> None:
        """Refuse a model without times."""
        if not self.batches:
            raise InvalidLatency("a latency model needs the times of at least one batch size")

    @classmethod
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
        """Build a model from times entered by hand, in seconds.

        A table is one number, which holds for every size; `{size: time}`; or `{prefix: {size: time}}`. A
        time is a number or a list of repeated measurements. `first` and `plain` do not depend on a size:
        they are a number, or `{prefix: time}`. Omitted parts count as no time.

        Args:
            verify: the target's pass, by nodes, the root included.
            draft: a draft pass, by the nodes that it expands.
            first: the first draft pass, if its time differs from that of a pass over one node.
            draw: drawing one more child, by the number of nodes that it is drawn for.
            assemble: the rest of drafting, by nodes.
            accept: the acceptance rule, by nodes.
            commit: keeping the accepted rows in the cache, by nodes.
            rest: the time of a step outside of these stages.
            plain: a step of plain decoding, if it is not the sum of its parts.
            law: name of the law that the draft's times hold for.
            batch: number of texts decoded at once.
            about: origin of the times.

        Raises:
            InvalidLatency: with the table and the invalid value.

        Example:
            >>> model = LatencyModel.from_tables(verify={1: 0.020, 16: 0.024}, draft={1: 0.002})
            >>> round(model.step_s(TreeShape.chain(3)), 4)
            0.0268
        """
        tables = {
            "verify": verify, "draft": draft, "first": first, "draw": draw, "assemble": assemble,
            "accept": accept, "commit": commit, "rest": rest, "plain": plain,
        }  # fmt: skip
        return cls(typed_tables(tables, law, batch), dict(about or {}))

    @classmethod
    def of_batches(cls, models: Mapping[int, "LatencyModel"]) -> "LatencyModel":
        """Combine several models into one, each giving the times of one batch size.

        Raises:
            NotMeasured: if a model has no times for its batch size.
            InvalidLatency: if there is no model.
        """
        batches = {batch: models[batch].times(batch) for batch in sorted(models)}
        sentences = dict.fromkeys(model.disturbed for model in models.values() if model.disturbed)
        about = next((model.about for model in models.values()), {})
        return cls(batches, about, " ".join(sentences) or None)

    def for_batch(self, batch: int) -> "LatencyModel":
        """The times of one batch size alone.

        Raises:
            NotMeasured: if there are none.
        """
        return replace(self, batches={batch: self.times(batch)})

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Measured prefix lengths of the smallest batch; empty if times hold for every prefix."""
        return self._any(min(self.batches)).verify.prefixes

    def prefix_at(self, prefix: int | None, batch: int | None = None) -> int | None:
        """The prefix itself; or, for None, the middle one of those that all tables of a batch size cover.

        All tables share this prefix, so that no step is a sum of times for different prefixes. If no prefix
        is covered by all, it is one of the first table: a step then raises an error that names a table
        without it. None if times hold for every prefix.

        Raises:
            NotMeasured: if there are no times for the batch size.
        """
        tables = [table for law in self.times(batch).values() for table in law.tables]
        known = [table.prefixes for table in tables if table.prefixes]
        if prefix is not None or not known:
            return prefix
        low, high = max(ends[0] for ends in known), min(ends[-1] for ends in known)
        covered = {each for prefixes in known for each in prefixes if low <= each <= high}
        candidates = sorted(covered) or known[0]
        return candidates[(len(candidates) - 1) // 2]

    @property
    def laws(self) -> tuple[str, ...]:
        """Names of the laws with times; `"any"` stands for all laws."""
        return tuple(dict.fromkeys(law for laws in self.batches.values() for law in laws))

    @property
    def round_count(self) -> int:
        """Number of rounds, in each of which everything was measured once; 0 if it is not known."""
        laws = [law for laws in self.batches.values() for law in laws.values()]
        return max(table.round_count for law in laws for table in law.tables)

    def times(self, batch: int | None = None) -> Mapping[str, StepParts]:
        """The times of a batch size by name of the law.

        `batch`: number of texts decoded at once; None for the only known one, or for one text.

        Raises:
            NotMeasured: if there are none.
        """
        if batch is None:
            batch = next(iter(self.batches)) if len(self.batches) == 1 else 1
        if batch not in self.batches:
            raise NotMeasured(
                f"batch = {batch}, but times are known for {', '.join(map(str, self.batches))}: "
                f"measure them (`treespec profile --batch {batch}`), or enter them by hand "
                "(`LatencyModel.from_tables(..., batch=)`, `of_batches`)"
            )
        return self.batches[batch]

    def law_times(self, law: str | None = None, batch: int | None = None) -> StepParts:
        """The times of a law; if no law is named, those of the only law.

        Raises:
            NotMeasured: if the law has no times, or no law is named and there are several.
            InvalidTree: if there is no law of this name, and the times are those of all laws.
        """
        laws = self.times(batch)
        if law is not None and str(law) not in laws and ANY_LAW in laws:
            Law.of(law)  # times of all laws are no times of a misspelt one
        matching = laws.get(str(law)) or laws.get(ANY_LAW)
        if law is None and len(laws) == 1:
            matching = next(iter(laws.values()))
        if matching is None:
            given = "no law is named" if law is None else f"law = {str(law)!r}"
            raise NotMeasured(
                f"{given}, but times are known for {', '.join(laws)}: "
                "name one of them, or profile a config that uses it"
            )
        return matching

    def largest(
        self, prefix: int | None = None, *, law: str | None = None, batch: int | None = None
    ) -> int | None:
        """The largest tree for which all parts of a step are known; None if there is no bound."""
        return self.at(prefix, law, batch).largest

    def verify_s(self, size: int, prefix: int | None = None, *, batch: int | None = None) -> float:
        """Seconds of the target's pass over a tree of `size` nodes, the root included; see `step_s`."""
        return self._any(batch).verify.at(size, self.prefix_at(prefix, batch))

    def draft_level_s(
        self,
        width: int,
        prefix: int | None = None,
        *,
        law: str | None = None,
        batch: int | None = None,
    ) -> float:
        """Seconds of a draft pass below the first that gives `width` nodes a child each; see `step_s`."""
        return self.law_times(law, batch).level.at(width, self.prefix_at(prefix, batch))

    def plain_s(
        self, prefix: int | None = None, *, law: str | None = None, batch: int | None = None
    ) -> float:
        """Seconds of a step of plain decoding under the sampling of `law`; see `step_s`."""
        return self.at(prefix, law, batch).step_s(TreeShape.chain(0))

    def step_s(
        self,
        shape: TreeShape,
        prefix: int | None = None,
        *,
        law: str | None = None,
        batch: int | None = None,
    ) -> float:
        """Seconds of a whole step of a static shape; the root alone is a step of plain decoding.

        Args:
            shape: the tree that is drafted at every step.
            prefix: committed tokens before the root; None for the middle one of those measured.
            law: how children are drawn; None if the model knows one law.
            batch: number of texts decoded at once; None for the only known one, or for one text.

        Raises:
            NotMeasured: with the table, the requested value, its range and the way out.
        """
        return self.at(prefix, law, batch).step_s(shape)

    def at(
        self, prefix: int | None = None, law: str | None = None, batch: int | None = None
    ) -> StepParts:
        """The times that steps are sums of, for this prefix, law and batch; arguments as in `step_s`.

        Raises:
            NotMeasured: if there are no times for the law or the batch size.
        """
        name = next(iter(self.times(batch))) if law is None else str(law)
        return replace(
            self.law_times(law, batch),
            prefix=self.prefix_at(prefix, batch),
            together=name == Law.DETERMINISTIC.value,
        )

    def _any(self, batch: int | None) -> StepParts:
        """The times of the first law, for tables that all laws share."""
        return next(iter(self.times(batch).values()))

    def to_json(self) -> str:
        """JSON in milliseconds, with the unit in the names of the keys; readable and writable by hand."""
        return write_json(self.batches, self.about, self.disturbed)

    @classmethod
    def from_json(cls, text: str, source: str = "latency JSON") -> "LatencyModel":
        """Read JSON that `to_json` wrote, or that was written by hand.

        Args:
            text: the JSON.
            source: name of the text in messages.

        Raises:
            InvalidLatency: with the source, the key, the value and what is allowed.
        """
        return cls(*read_json(text, source))

    def save(self, path: str | Path) -> Path:
        """Write the JSON to a file."""
        return write_whole(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "LatencyModel":
        """Read a file.

        Raises:
            InvalidLatency: if the file is missing or not a valid latency file.
        """
        try:
            text = read_text(path)
        except Unreadable as error:
            raise InvalidLatency(str(error)) from None
        return cls.from_json(text, str(path))


@dataclass(frozen=True, eq=False)
class Times:
    """A model's times for one prefix and batch size, and their resamples, which all shapes share.

    Args:
        latency: the measured times.
        prefix: committed tokens before the root; None only if times hold for every prefix.
        batch: number of texts decoded at once.
        draws: number of resamples.
        seed: seed of the resamples.
    """

    latency: LatencyModel
    prefix: int | None
    batch: int
    draws: int
    seed: int
    _drawn: dict[Curve, Float[np.ndarray, "draws sizes"]] = field(default_factory=dict)

    @cached_property
    def rng(self) -> np.random.Generator:
        """For unrelated measurements, which are resampled independently."""
        return np.random.default_rng(self.seed)

    def of(self, law: str) -> StepParts:
        """The times that steps of a law are sums of."""
        return self.latency.at(self.prefix, law, self.batch)

    def seconds(
        self, terms: Sequence[Term], law: str, size: int
    ) -> tuple[float, Float[np.ndarray, "draws"]]:
        """The time of the first step of these terms, as measured and under every resample.

        A machine is slightly faster in some rounds of measuring than in others, for all parts alike, so
        rounds are resampled where they are known. `law` and `size` are for the message if a step takes no
        time.
        """
        total = np.zeros(self.draws)
        rounds = self.latency.round_count
        drawn_rounds = draws(rounds, self.draws, self.seed + 1) if rounds > 1 else None
        for curve, weights in terms:
            if curve not in self._drawn:
                self._drawn[curve] = curve.drawn(self.rng, self.draws, drawn_rounds)
            total = total + self._drawn[curve] @ weights[0]
        seconds = float(seconds_of(terms)[0])
        require_time(law, min(seconds, float(total.min())), size)
        return seconds, total

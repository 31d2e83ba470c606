"""Predictions for the methods of a run, from texts recorded and times measured before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from treespec.experiments.config.file import validated
from treespec.experiments.records.growths import growth_of
from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.records.measured import Measured, load_measured
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.prediction import Prediction, Unpredicted
from treespec.protocols import MarginalGrowth
from treespec.search import InvalidGrowth, InvalidTrace, Trace
from treespec.search.intervals import Interval
from treespec.search.latency.errors import NotMeasured
from treespec.search.rates.growth_replay import replay_growth
from treespec.search.rates.replay import replay
from treespec.search.rates.rule_notes import by_member
from treespec.search.rates.sampling_names import name_of
from treespec.tree import Law, TreeShape

__all__ = ["predictions"]

OWN_DRAFT = "drafted by a source of its own, which a search before a run does not record"
NOT_OURS = "a growth of a plug-in, or one whose files are gone or have changed"
NOT_KEPT = "the run did not keep how its trees grow"
DRAWN = "children that are drawn above temperature 0: no trace holds the draws"
MARGINAL = "children of a whole level from one row of the draft: no trace holds these rows"
NOT_RECORDED = "what was recorded before the run does not hold what is needed"
TOO_LARGE = "wider or deeper than what was recorded"
NOT_TIMED = "a part of a step was not timed"


def predictions(
    run: RunRecords, measurements: Mapping[str, Measurements]
) -> tuple[list[Prediction], list[Unpredicted]]:
    """Predict all methods that the recordings before the run cover, and list those that they do not cover.

    On both sides, tokens include what steps emit past the budget.

    Args:
        run: the run.
        measurements: measurements by sampling setting.

    Returns:
        Predictions, and methods without a prediction; both empty if nothing was recorded before the run, or
        if the recordings are gone.

    Raises:
        RunFolderError, InvalidTrace, InvalidLatency: if a file is damaged.
    """
    measured = _measured(run)
    if measured is None:
        return [], []
    rows = [row for data in measurements.values() for row in _of_setting(run, data, measured)]
    predicted = [row for row in rows if isinstance(row, Prediction)]
    return predicted, [row for row in rows if isinstance(row, Unpredicted)]


def _measured(run: RunRecords) -> Measured | None:
    config = run.manifest["config"]
    if config.get("search") is None or not (run.folder / "search").is_dir():
        return None
    # Methods may need plug-ins, which a report does not load; configs of schema 2 have a key that is gone.
    search = {key: value for key, value in config["search"].items() if key != "between"}
    readable = config | {"methods": [{"kind": "generate"}], "search": search}
    return load_measured(validated(run.folder / "manifest.json", readable), run.folder / "search")


def _of_setting(
    run: RunRecords, data: Measurements, measured: Measured
) -> list[Prediction | Unpredicted]:
    """The methods of our loop under one setting; empty without plain decoding by our loop."""
    ours = [method for method in data.methods if method.kind in ("plain", "tree")]
    plain = next((method.name for method in ours if method.kind == "plain"), None)
    if plain is None or not data.prompts:
        return []
    rows = [_Case(run.folder / "search", plain, data, measured, method).row() for method in ours]
    any_tree = any(isinstance(row, Prediction) and row.size > 1 for row in rows)
    return rows if any_tree else [row for row in rows if isinstance(row, Unpredicted)]


@dataclass(frozen=True, eq=False)
class _Case:
    """One method of a run under one sampling setting.

    Args:
        searched: folder `search` of the run.
        plain: name of plain decoding by our loop.
        data: measurements of the run.
        measured: recordings and times from before the run.
        method: the method.
    """

    searched: Path
    plain: str
    data: Measurements
    measured: Measured
    method: Method

    def row(self) -> Prediction | Unpredicted:
        """The prediction for the method beside its measurement, or the reason why there is none."""
        try:
            expected = self._expected()
        except NotMeasured:
            expected = NOT_TIMED
        if isinstance(expected, str):
            return Unpredicted(self.method.name, self.data.sampling, expected)
        return expected

    def _expected(self) -> Prediction | str:
        """The prediction for the method, or the reason why there is none.

        Raises:
            NotMeasured: if a part of its step was not timed.
        """
        method = self.method
        if method.kind == "plain":
            return self._static(TreeShape.chain(0), self._usual)
        if not method.by_pair:
            return OWN_DRAFT
        law = method.law[self.data.sampling]
        if method.parents is not None:
            shape = TreeShape(method.parents)
            rule = method.rule[self.data.sampling]
            recorded_rule = self.measured.of_other_rule(rule, self.data.sampling, law, shape)
            if recorded_rule is not None:
                return f"rule {rule}: what was recorded before the run is of rule {recorded_rule}"
            return self._static(shape, law)
        return self._grown(law)

    def _prediction(
        self,
        law: str,
        trace: Trace,
        *,
        size: float,
        tokens: Interval,
        speedup: Interval,
        speed: float,
        sure: float | None = None,
        untimed: bool = False,
    ) -> Prediction:
        """A prediction from the trace and the times of a law, beside the measurement."""
        name, totals, latency = self.method.name, self.data.totals, self.measured.latency
        timed = self._timed(law)
        timed_under = None if timed is None else latency.law_times(timed).sampling
        return Prediction(
            name,
            self.data.sampling,
            size,
            tokens,
            totals.ratio([(name, "emitted")], [(name, "steps")]),
            speedup,
            totals.ratio(
                [(name, "emitted"), (self.plain, "decode_s")],
                [(name, "decode_s"), (self.plain, "emitted")],
            ),
            speed,
            latency.disturbed,
            sure,
            untimed,
            None if timed_under == name_of(trace.sampling) else timed_under,
        )

    @property
    def _usual(self) -> str:
        return self.measured.default_law(self.data.sampling)

    def _timed(self, law: str) -> str | None:
        """The law to look up times by; None if the latency file does not tell laws apart."""
        return law if law in self.measured.latency.laws else None

    @property
    def _plain_s(self) -> float:
        return self.measured.latency.plain_s(self.measured.prefix, law=self._timed(self._usual))

    def _static(self, shape: TreeShape, law: str) -> Prediction | str:
        """The prediction for a tree that is the same at every step."""
        trace = self.measured.trace(self.data.sampling, law, shape.is_chain)
        if trace is None:
            return NOT_RECORDED
        deepest = int(trace.about.get("beyond", 0)) + 1
        if max(map(len, shape.children)) > trace.width or shape.depth > deepest:
            return TOO_LARGE
        step_s = self.measured.latency.step_s(shape, self.measured.prefix, law=self._timed(law))
        tokens = replay(trace, shape).interval()
        return self._prediction(
            law,
            trace,
            size=shape.size,
            tokens=tokens,
            speedup=tokens.scaled(self._plain_s / step_s),
            speed=tokens.estimate / step_s,
        )

    def _grown(self, law: str) -> Prediction | str:
        """The prediction for a tree that grows: replays its own code and times each step."""
        if self.method.growth is None:
            return NOT_KEPT
        growth, rule = growth_of(self.method, self.searched), self.method.rule
        trace = self.measured.trace(self.data.sampling, Law.DETERMINISTIC.value)
        if growth is None:
            return NOT_OURS
        if isinstance(growth, MarginalGrowth):
            return MARGINAL
        if law != Law.DETERMINISTIC.value:
            # At temperature 0 every draw is certain, whatever the law.
            if trace is None or not trace.greedy:
                return DRAWN
        elif trace is None or trace.draft_rows is None:
            return NOT_RECORDED
        elif not by_member(rule[self.data.sampling]):
            return f"rule {rule[self.data.sampling]}: no trace holds what it accepts of such trees"
        try:
            replayed = replay_growth(trace, growth)
        except (InvalidTrace, InvalidGrowth) as error:
            return str(error)
        if not any(replayed.levels):  # a growth that never drafts decodes plainly
            return self._static(TreeShape.chain(0), self._usual)
        parts = self.measured.latency.at(self.measured.prefix, self._timed(law))
        speed = replayed.speed(parts)
        return self._prediction(
            law,
            trace,
            size=replayed.nodes_per_step,
            tokens=replayed.interval(),
            speedup=speed.scaled(self._plain_s),
            speed=speed.estimate,
            sure=float(replayed.sure.mean()),
            untimed=parts.decide is None,
        )

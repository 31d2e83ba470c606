"""RESULTS.md, and the README's measured parts, made of the result files that are kept.

    python -m treespec.experiments.studies.results_page

No figure on these pages is typed by hand: a test holds them against the files in `benchmarks/results`. A
part of the README that is measured stands between two comments, and is a section of RESULTS.md:

    <!-- measured: tree_vs_chain -->
    <!-- end -->
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treespec.experiments.benchmarks.results_file import RESULTS
from treespec.experiments.errors import ConfigError
from treespec.experiments.studies import advice_sections as advice
from treespec.experiments.studies import benchmark_sections as benchmarks
from treespec.experiments.studies import run_sections as runs
from treespec.experiments.studies import search_sections as searches
from treespec.experiments.studies import source_sections as sources
from treespec.experiments.studies import trust_sections as trust
from treespec.experiments.studies.result_tables import Parts, Row
from treespec.whole_file import write_whole

__all__ = ["PAGE", "README", "SECTIONS", "Section", "by_prompts", "filled", "results_page"]

ROOT = RESULTS.parents[2]
PAGE, README = ROOT / "experiments" / "RESULTS.md", ROOT / "README.md"

HEAD = """# Results

What has been measured, with the commands that measure it again. Made from the files in
[benchmarks/results](benchmarks/results) by `python -m treespec.experiments.studies.results_page`; a test
holds this page against them. Intervals are 95 %. Times are of the machine that each section names: all of
them are CPUs, **nothing has been timed on a GPU yet** (`make gpu` does that).

Methods of a run took turns, step by step, unless the section of the run says that they did not:
[interleaving, bursts](#interleaving-bursts) compares the two ways.
"""

BY_PROMPTS = (
    "Measured prompt by prompt, by one method after the other: a neighbour's burst may have hit one method "
    "more than another, which the intervals do not show."
)

_MEASURED = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A part of RESULTS.md.

    Args:
        file: of its figures, without the machine's name.
        question: that it answers.
        command: that measures it again.
        parts: writes paragraphs and tables of a file's content.
    """

    file: str
    question: str
    command: str
    parts: Callable[[Row], Parts]

    @property
    def paths(self) -> list[Path]:
        """The files of its figures, one for each machine, the latest first.

        Raises:
            ConfigError: if there is none.
        """
        files = sorted(RESULTS.glob(f"{self.file}-*-cores.json"))
        if not files:
            raise ConfigError(f"there is no file {self.file}-<machine>.json in {str(RESULTS)!r}")
        return sorted(files, key=lambda path: _read(path)["measured"], reverse=True)

    def read(self) -> Row:
        """The content of the latest."""
        return _read(self.paths[0])

    @property
    def body(self) -> str:
        """What the latest says, without a heading; the others are named."""
        path, *others = self.paths
        data = _read(path)
        parts = "\n\n".join(text for texts in self.parts(data).values() for text in texts)
        said = [BY_PROMPTS] if by_prompts(data) else []
        said += [f"`{self.command}`, measured {_measured(data)}: `{path.name}`."]
        said += [f"Before, {_measured(_read(one))}: `{one.name}`." for one in others]
        return f"{parts}\n\n{' '.join(said)}\n"


def results_page() -> str:
    """RESULTS.md."""
    sections = [
        f"## {name}\n\n{section.question}\n\n{section.body}" for name, section in SECTIONS.items()
    ]
    return "\n".join([HEAD, *sections])


def filled(page: str) -> str:
    """A page with its measured parts as the files have them.

    Raises:
        ConfigError: if it asks for a part that there is not.
    """

    def part(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name not in SECTIONS:
            raise ConfigError(f"no section {name!r} (there are: {', '.join(SECTIONS)})")
        return f"{begin}\n{SECTIONS[name].body}\n{end}"

    return _MEASURED.sub(part, page)


def by_prompts(data: Row) -> bool:
    """Whether a file is of a run or sweep whose methods took no turns.

    The first configs that know of turns came with them.
    """
    if "config" not in data and "grid" not in data:
        return False
    together = (data.get("config") or {}).get("together", 1)
    return data.get("together", together) == 1


def _read(path: Path) -> Row:
    return json.loads(path.read_text(encoding="utf-8"))


def _measured(data: Row) -> str:
    """When, on what, and with which code."""
    hardware, models = data["hardware"], data.get("models")
    said = [data["measured"][:10], f"on {hardware['cores']} cores of an {hardware['cpu']}"]
    if hardware.get("simd"):
        said[-1] += f" with {hardware['simd']}"
    if models:
        target, draft = models["target"], models["draft"]
        sizes = " and ".join(f"{m['parameters'] / 1e6:.3g} M" for m in (target, draft))
        said.append(f"target and draft of {sizes} parameters in {target['dtype']}")
    if data.get("git_hash"):
        said.append(f"commit {data['git_hash'][:7]}")
    return ", ".join([*said, f"torch {data['versions']['torch']}"])


def _run(file: str, question: str, parts: Callable[[Row], Parts] = runs.methods) -> Section:
    """A study of a shipped config."""
    return Section(f"study-{file}", question, f"treespec run {file}", parts)


def _benchmark(file: str, room: str, question: str, parts: Callable[[Row], Parts]) -> Section:
    return Section(file, question, f"python -m treespec.experiments.{room}.{file}", parts)


def _beside(neighbour: str, question: str, options: str = "--by-prompts 4") -> Section:
    """Runs beside one neighbour."""
    name = "interleaving"
    command = f"python -m treespec.experiments.benchmarks.{name} {options} --neighbour {neighbour}"
    return Section(f"{name}_{neighbour}", question, command, trust.interleaving)


def _tests(file: str, question: str, parts: Callable[[Row], Parts]) -> Section:
    return Section(file, question, f"PYTHONPATH=tests/helpers python -m {file}", parts)


SECTIONS = {
    "tree_vs_chain": Section(
        "study-tree_vs_chain",
        "Does a tree beat a chain here, and plain decoding? `make demo` runs it, and compiles passes where "
        "that pays. With eager passes, on the Intel machine, chains won.",
        "treespec run tree_vs_chain models.passes=compiled models.draft_passes=compiled",
        runs.methods,
    ),
    "equal_budget": _run(
        "equal_budget",
        "Trees against chains at equal verified nodes, draft passes, and time.",
        runs.equal_budgets,
    ),
    "search_then_run": Section(
        "study-search_then_run_bfloat16",
        "Which tree does search choose, and is it the fastest?",
        "treespec run search_then_run models.enlarge=50M",
        runs.methods,
    ),
    "search_then_run in float32": Section(
        "study-search_then_run",
        "The same for the target as it is, in float32.",
        "treespec run search_then_run models.dtype=float32 models.enlarge=null",
        runs.methods,
    ),
    "prediction": Section(
        "prediction",
        "How far off are predictions of that run, made before it?",
        "python -m treespec.experiments.studies.prediction models.enlarge=50M",
        runs.prediction,
    ),
    "budget_scaling": Section(
        "study-budget_scaling",
        "Do optimal trees grow with the budget where chains stop?",
        "treespec run budget_scaling",
        runs.scaling,
    ),
    "temperature": _run("temperature", "At other temperatures, with trees searched for each."),
    "context_length": Section(
        "study-context_length",
        "Behind longer texts.",
        "treespec sweep context_length",
        runs.grid,
    ),
    "draft_quality": Section(
        "study-draft_quality",
        "With drafts of other sizes and training.",
        "treespec sweep draft_quality",
        runs.grid,
    ),
    "categories": _run(
        "categories",
        "Documentation or code: speedups over plain decoding.",
        runs.categories,
    ),
    "which_source": Section(
        "study-sources_by_size",
        "Which draft is the fastest, by kind of text?",
        "python -m treespec.experiments.studies.sources_by_size",
        sources.which_source,
    ),
    "sources_by_size": Section(
        "study-sources_by_size",
        "What is each draft source worth, as a chain and as a tree, by size and by kind of text?",
        "python -m treespec.experiments.studies.sources_by_size",
        sources.sources,
    ),
    "draft_sources": _benchmark(
        "draft_sources",
        "benchmarks",
        "What do sources without a draft model cost as what they remember grows?",
        sources.draft_sources,
    ),
    "skip_sets": _benchmark(
        "skip_sets",
        "studies",
        "Is a searched skip set better than random ones of its size? Acceptance on other files, and "
        "greedy decoding with a chain of 4.",
        sources.skip_sets,
    ),
    "verifiers": _run("verifiers", "What does each acceptance rule keep on the same trees?"),
    "rules_on_pair": _benchmark(
        "rules_on_pair",
        "studies",
        "What do rules accept on the embedded pair at temperature 1? Draft tokens kept, measured with real "
        "coins and predicted by exact expectation.",
        searches.rules,
    ),
    "verify_cost": _benchmark(
        "verify_cost", "benchmarks", "What does a verdict cost?", benchmarks.costs
    ),
    "dynamic_trees": _benchmark(
        "dynamic_trees",
        "studies",
        "Do trees that grow by the draft's confidence keep more than static ones?",
        searches.dynamic,
    ),
    "replay": _benchmark(
        "replay",
        "studies",
        "Does replaying a trace give what a live run gives?",
        searches.replay,
    ),
    "growth_replay": _benchmark(
        "growth_replay",
        "studies",
        "Does replaying trees that grow give what a live run gives, at temperature 0?",
        searches.growth_replay,
    ),
    "search_advice": Section(
        "search_advice",
        "Does the advice of a search hold on texts that it has not seen? Halves of traces, one for the "
        "search and one for its replay, again and again.",
        "python -m treespec.experiments.studies.search_advice TRACE ... --latency L",
        advice.advice,
    ),
    "advice_live": Section(
        "advice_live",
        "Are tokens per step what a search predicts, when the trees are decoded with?",
        "python -m treespec.experiments.studies.search_advice TRACE ... --latency L --only live",
        advice.advice_live,
    ),
    "advice_runs": Section(
        "advice_runs",
        "Is what a search chose before a run the fastest of the run?",
        "python -m treespec.experiments.studies.search_advice --only runs",
        advice.advice_runs,
    ),
    "speedup": _benchmark(
        "speedup",
        "benchmarks",
        "Beside what a user would pick instead.",
        benchmarks.speedup,
    ),
    "passes": Section(
        "passes",
        "What does a pass over a tree cost, operation by operation and compiled?",
        "python -m treespec.experiments.benchmarks.passes",
        benchmarks.passes,
    ),
    "attention_on_cpu": _benchmark(
        "attention_on_cpu",
        "benchmarks",
        "What does attention of a short tree behind a long prefix cost on the CPU: in one pass of torch's, "
        "in two that are joined, and by the kernel of compiled passes?",
        benchmarks.attention,
    ),
    "draft_heads": _benchmark(
        "draft_heads",
        "benchmarks",
        "What does a level of drafting do with its logits: how long does it take to make probabilities of "
        "them and to draw children, operation by operation and by a kernel?",
        benchmarks.heads,
    ),
    "interleaving, quiet": _beside(
        "quiet",
        "Does a verdict depend on the neighbours? Two identical chains and a third that is 5 % dearer, in "
        "runs of 12 prompts, first on the quiet machine.",
    ),
    "interleaving, bursts": _beside(
        "bursts", "The same beside a process that uses a core for 0.7 s of every 2 s."
    ),
    "interleaving, drift": _beside(
        "drift",
        "The same while a neighbour takes more and more of a core, half of it at the end of a run.",
    ),
    "interleaving, steady": _beside(
        "steady",
        "The same beside a process for each core that always works: few runs, because they take long. A "
        "thread that has done its part waits for the other one by spinning, and what the dearer method "
        "spins itself costs it more there.",
        "--runs 4 --by-prompts 4",
    ),
    "interleaving, steady, threads that sleep": Section(
        "interleaving_steady_passive",
        "The same with threads that sleep while they wait for each other: a run takes about half the time.",
        "OMP_WAIT_POLICY=PASSIVE python -m treespec.experiments.benchmarks.interleaving --by-prompts 0 "
        "--neighbour steady",
        trust.interleaving,
    ),
    "same_verdicts": Section(
        "same_verdicts",
        "Do runs of the same methods name the same winners, on the quiet machine and beside the bursts? "
        "The methods of `speed` at temperature 0, with eager passes.",
        "python -m treespec.experiments.benchmarks.same_verdicts",
        trust.same_verdicts,
    ),
    "honest_cost": _benchmark(
        "honest_cost",
        "benchmarks",
        "Do adjusted times charge methods for steps that honestly differ? On the quiet machine, where "
        "totals are right.",
        trust.honest,
    ),
    "interleaved_estimator": _benchmark(
        "interleaved_estimator",
        "studies",
        "How far off are adjusted times on simulated machines?",
        trust.estimator,
    ),
    "interleaved_estimator, recorded": Section(
        "interleaved_estimator_recorded",
        "The same on slowdowns that were recorded on this machine (`benchmarks.slowdown_traces`).",
        "python -m treespec.experiments.studies.interleaved_estimator --traces FOLDER",
        trust.estimator,
    ),
    "until_simulation": _benchmark(
        "until_simulation",
        "studies",
        "How often do runs that stop when they are decided find a winner among equals, and how many "
        "prompts do they need?",
        trust.until,
    ),
    "loop_overhead": _benchmark(
        "loop_overhead",
        "benchmarks",
        "What does the loop cost outside the models?",
        benchmarks.overhead,
    ),
    "search_speed": _benchmark(
        "search_speed",
        "benchmarks",
        "How long does searching a tree take?",
        benchmarks.speed_of_search,
    ),
    "bootstrap_coverage": _benchmark(
        "bootstrap_coverage",
        "studies",
        "Do the intervals contain the truth as often as they say?",
        trust.coverage,
    ),
    "lossless_power": _benchmark(
        "lossless_power",
        "studies",
        "What would `treespec check-lossless` notice?",
        trust.power,
    ),
    "fault_injection": _tests(
        "fault_injection",
        "Do runs survive kills, interrupts, damaged files, full disks?",
        trust.faults,
    ),
    "sweep_faults": _tests("sweep_faults", "Do sweeps?", trust.sweep_faults),
}


def main() -> None:
    """Write both pages."""
    if not README.is_file():
        raise SystemExit(f"there is no {README}: these pages belong to a clone of treespec")
    write_whole(PAGE, results_page())
    write_whole(README, filled(README.read_text(encoding="utf-8")))
    print(f"written: {PAGE}, {README}")


if __name__ == "__main__":
    main()

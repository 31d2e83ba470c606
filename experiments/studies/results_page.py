"""Generate RESULTS.md, and the measured parts of the README, from the committed result files.

    python -m treespec.experiments.studies.results_page

No figure on these pages is typed by hand: a test compares them with the files in `benchmarks/results`. Each
measured part of the README repeats a section of RESULTS.md between two comments:

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
from treespec.experiments.studies import gpu_sections as gpus
from treespec.experiments.studies import run_sections as runs
from treespec.experiments.studies import search_sections as searches
from treespec.experiments.studies import source_sections as sources
from treespec.experiments.studies import trust_sections as trust
from treespec.experiments.studies.result_tables import Parts, Row
from treespec.files import write_whole

__all__ = ["PAGE", "README", "SECTIONS", "Section", "by_prompts", "filled", "results_page"]

ROOT = RESULTS.parents[2]
PAGE, README = ROOT / "experiments" / "RESULTS.md", ROOT / "README.md"

HEAD = """# Results

Everything that has been measured, with the command that repeats each measurement. This page is generated
from the files in [benchmarks/results](benchmarks/results) by
`python -m treespec.experiments.studies.results_page`, and a test checks that it matches them. Intervals are
95 % intervals. Each section names the machine that its times were measured on. All of them are CPUs,
except in the sections [gpu_accuracy](#gpu_accuracy), [gpu_kernels](#gpu_kernels) and
[gpu_decode](#gpu_decode).

The methods of a run took turns step by step, unless the section says that they did not;
[interleaving, bursts](#interleaving-bursts) compares the two ways of measuring.
"""

BY_PROMPTS = (
    "Measured prompt by prompt, one method after the other: a burst of other work on the machine may have "
    "slowed one method more than another, and the intervals do not show this."
)

_MEASURED = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A section of RESULTS.md.

    Args:
        file: name of the files with its figures, without the machine.
        question: the question that the section answers.
        command: the command that repeats the measurement.
        parts: turns the content of a file into paragraphs and tables.
        machines: pattern of the machines' names.
    """

    file: str
    question: str
    command: str
    parts: Callable[[Row], Parts]
    machines: str = "*-cores"

    @property
    def paths(self) -> list[Path]:
        """The files with its figures, one per machine, latest first.

        Raises:
            ConfigError: if there is no such file.
        """
        files = sorted(RESULTS.glob(f"{self.file}-{self.machines}.json"))
        if not files:
            raise ConfigError(f"there is no file {self.file}-<machine>.json in {str(RESULTS)!r}")
        return sorted(files, key=lambda path: _read(path)["measured"], reverse=True)

    @property
    def body(self) -> str:
        """The section without its heading, from the latest file; earlier files are named at the end."""
        path, *earlier = self.paths
        data = _read(path)
        parts = "\n\n".join(text for texts in self.parts(data).values() for text in texts)
        origin = [BY_PROMPTS] if by_prompts(data) else []
        origin += [f"`{self.command}`, measured {_measured(data)}: `{path.name}`."]
        origin += [f"Earlier: {_measured(_read(old))}: `{old.name}`." for old in earlier]
        return f"{parts}\n\n{' '.join(origin)}\n"


def results_page() -> str:
    """The text of RESULTS.md."""
    sections = [
        f"## {name}\n\n{section.question}\n\n{section.body}" for name, section in SECTIONS.items()
    ]
    return "\n".join([HEAD, *sections])


def filled(page: str) -> str:
    """The page with its measured parts filled in from the files.

    Raises:
        ConfigError: if the page names a section that does not exist.
    """

    def part(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name not in SECTIONS:
            raise ConfigError(f"no section {name!r} (there are: {', '.join(SECTIONS)})")
        return f"{begin}\n{SECTIONS[name].body}\n{end}"

    return _MEASURED.sub(part, page)


def by_prompts(data: Row) -> bool:
    """Whether a file holds a run or sweep whose methods did not take turns.

    Configs without the key `together` are older than turns.
    """
    if "config" not in data and "grid" not in data:
        return False
    together = (data.get("config") or {}).get("together", 1)
    return data.get("together", together) == 1


def _read(path: Path) -> Row:
    return json.loads(path.read_text(encoding="utf-8"))


def _measured(data: Row) -> str:
    """When a file was measured, on which machine, with which models and code."""
    hardware, models = data["hardware"], data.get("models")
    facts = [data["measured"][:10], f"on {hardware['cores']} cores of an {hardware['cpu']}"]
    if hardware.get("gpu"):
        facts[-1] = f"on an {hardware['gpu']}"
    elif hardware.get("simd"):
        facts[-1] += f" with {hardware['simd']}"
    if models:
        target, draft = models["target"], models["draft"]
        sizes = " and ".join(f"{m['parameters'] / 1e6:.3g} M" for m in (target, draft))
        facts.append(f"target and draft of {sizes} parameters in {target['dtype']}")
    if data.get("git_hash"):
        facts.append(f"commit {data['git_hash'][:7]}")
    return ", ".join([*facts, f"torch {data['versions']['torch']}"])


def _run(file: str, question: str, parts: Callable[[Row], Parts] = runs.methods) -> Section:
    """The section of a shipped config."""
    return Section(f"study-{file}", question, f"treespec run {file}", parts)


def _benchmark(file: str, package: str, question: str, parts: Callable[[Row], Parts]) -> Section:
    """The section of a module in `benchmarks` or `studies`."""
    return Section(file, question, f"python -m treespec.experiments.{package}.{file}", parts)


def _gpu(part: str, question: str) -> Section:
    """The section of a part of `make gpu`."""
    command = f"python -m treespec.experiments.benchmarks.gpu {part}"
    return Section(f"gpu_{part}", question, command, gpus.gpu(part), machines="*")


def _beside(neighbour: str, question: str, options: str = "--by-prompts 4") -> Section:
    """The section of runs beside one kind of neighbour."""
    name = "interleaving"
    command = f"python -m treespec.experiments.benchmarks.{name} {options} --neighbour {neighbour}"
    return Section(f"{name}_{neighbour}", question, command, trust.interleaving)


SECTIONS = {
    "tree_vs_chain": Section(
        "study-tree_vs_chain",
        "Does a tree beat a chain, and plain decoding? `make demo` runs this config and compiles the "
        "passes where that pays. With eager passes on the Intel machine, chains won.",
        "treespec run tree_vs_chain models.passes=compiled models.draft_passes=compiled",
        runs.methods,
    ),
    "equal_budget": _run(
        "equal_budget",
        "Do trees beat chains at equal verified nodes, equal draft passes, and equal time?",
        runs.equal_budgets,
    ),
    "search_then_run": Section(
        "study-search_then_run_bfloat16",
        "Which tree does the search choose, and is it the fastest?",
        "treespec run search_then_run models.enlarge=50M",
        runs.methods,
    ),
    "search_then_run in float32": Section(
        "study-search_then_run",
        "The same with the target at its own size, in float32.",
        "treespec run search_then_run models.dtype=float32 models.enlarge=null",
        runs.methods,
    ),
    "prediction": Section(
        "prediction",
        "How accurate were the predictions of that run, all made before it started?",
        "python -m treespec.experiments.studies.prediction models.enlarge=50M",
        runs.prediction,
    ),
    "budget_scaling": Section(
        "study-budget_scaling",
        "Do optimal trees keep gaining tokens per step as the budget grows, where chains stop gaining?",
        "treespec run budget_scaling",
        runs.scaling,
    ),
    "temperature": _run(
        "temperature",
        "How do trees and chains compare at other temperatures, with trees searched for each?",
    ),
    "context_length": Section(
        "study-context_length",
        "How do trees and chains compare after longer texts?",
        "treespec sweep context_length",
        runs.grid,
    ),
    "draft_quality": Section(
        "study-draft_quality",
        "How do trees and chains compare with draft models of other sizes and other training?",
        "treespec sweep draft_quality",
        runs.grid,
    ),
    "categories": _run(
        "categories",
        "How do speedups over plain decoding differ between documentation and code?",
        runs.categories,
    ),
    "which_source": Section(
        "study-sources_by_size",
        "Which draft source is the fastest on each kind of text?",
        "python -m treespec.experiments.studies.sources_by_size",
        sources.which_source,
    ),
    "sources_by_size": Section(
        "study-sources_by_size",
        "What is each draft source worth, as a chain and as a tree, by size and kind of text?",
        "python -m treespec.experiments.studies.sources_by_size",
        sources.sources,
    ),
    "merge_at_equal_nodes": Section(
        "study-merge_at_equal_nodes",
        "Do merges keep more tokens per step than the best single source, at as many nodes and on longer "
        "texts?",
        "python -m treespec.experiments.studies.merge_at_equal_nodes",
        sources.equal_nodes,
    ),
    "draft_sources": _benchmark(
        "draft_sources",
        "benchmarks",
        "How do the costs of sources without a draft model grow with the text that they remember?",
        sources.draft_sources,
    ),
    "skip_sets": _benchmark(
        "skip_sets",
        "studies",
        "Is a searched skip set better than random ones of the same size? Both are judged by acceptance on "
        "other files and by greedy decoding with a chain of 4.",
        sources.skip_sets,
    ),
    "verifiers": _run(
        "verifiers", "How many tokens does each acceptance rule keep on the same trees?"
    ),
    "rules_on_pair": _benchmark(
        "rules_on_pair",
        "studies",
        "How many draft tokens does each rule keep on the embedded pair at temperature 1, measured with "
        "random coins and predicted by exact expectation?",
        searches.rules,
    ),
    "verify_cost": _benchmark(
        "verify_cost", "benchmarks", "How long does a verdict take?", benchmarks.costs
    ),
    "dynamic_trees": _benchmark(
        "dynamic_trees",
        "studies",
        "Do trees that follow the draft's confidence keep more tokens than static trees?",
        searches.dynamic,
    ),
    "replay": _benchmark(
        "replay",
        "studies",
        "Does replaying a trace give the same result as a live run?",
        searches.replay,
    ),
    "growth_replay": _benchmark(
        "growth_replay",
        "studies",
        "Does replaying trees that grow give the same steps as a live run at temperature 0?",
        searches.growth_replay,
    ),
    "search_advice": Section(
        "search_advice",
        "Does the advice of a search hold on texts that it has not seen? Each trace is split into halves "
        "many times; one half is searched, and the other one replays the result.",
        "python -m treespec.experiments.studies.search_advice TRACE ... --latency L",
        advice.advice,
    ),
    "advice_live": Section(
        "advice_live",
        "Does decoding with a tree give the tokens per step that the search predicts?",
        "python -m treespec.experiments.studies.search_advice TRACE ... --latency L --only live",
        advice.advice_live,
    ),
    "advice_runs": Section(
        "advice_runs",
        "Is the shape that a search chose before a run the fastest one in that run?",
        "python -m treespec.experiments.studies.search_advice --only runs",
        advice.advice_runs,
    ),
    "speedup": _benchmark(
        "speedup",
        "benchmarks",
        "How fast is the best shape compared with what a user would choose instead?",
        benchmarks.speedup,
    ),
    "passes": Section(
        "passes",
        "How long does a pass over a tree take, operation by operation and compiled?",
        "python -m treespec.experiments.benchmarks.passes",
        benchmarks.passes,
    ),
    "attention_on_cpu": _benchmark(
        "attention_on_cpu",
        "benchmarks",
        "How long does attention of a short tree after a long prefix take on the CPU: in one pass with "
        "PyTorch's attention, in two passes that are merged, and with the kernel of compiled passes?",
        benchmarks.attention,
    ),
    "gpu_accuracy": _gpu("accuracy", "Is the kernel of tree attention right on a GPU?"),
    "gpu_kernels": _gpu(
        "kernels",
        "How long does attention of a tree take on a GPU, and what would the alternatives take? Since "
        "then, the kernel divides the work on long prefixes, for up to 16 nodes, into fewer parts.",
    ),
    "gpu_decode": _gpu(
        "decode", "How fast is decoding on a GPU, and how far from reading its bytes?"
    ),
    "draft_heads": _benchmark(
        "draft_heads",
        "benchmarks",
        "How long does a level of drafting take to turn its logits into probabilities and draw children, "
        "operation by operation and with one kernel?",
        benchmarks.heads,
    ),
    "interleaving, quiet": _beside(
        "quiet",
        "Does a verdict depend on other work on the machine? Two identical chains and a third chain whose "
        "steps take 5 % longer, in runs of 12 prompts; first on a quiet machine.",
    ),
    "interleaving, bursts": _beside(
        "bursts", "The same beside a process that uses one core for 0.7 s of every 2 s."
    ),
    "interleaving, drift": _beside(
        "drift",
        "The same beside a process that takes a growing share of a core, half of it at the end of a run.",
    ),
    "interleaving, steady": _beside(
        "steady",
        "The same beside processes that keep every core busy; only a few runs, because they take long. A "
        "thread that has finished its part spins while it waits for the other one, and the spinning that "
        "makes the dearer method 5 % slower costs more here.",
        "--runs 4 --by-prompts 4",
    ),
    "interleaving, steady, threads that sleep": Section(
        "interleaving_steady_passive",
        "The same with threads that sleep while they wait for each other, which makes runs shorter.",
        "OMP_WAIT_POLICY=PASSIVE python -m treespec.experiments.benchmarks.interleaving --by-prompts 0 "
        "--neighbour steady",
        trust.interleaving,
    ),
    "same_verdicts": Section(
        "same_verdicts",
        "Do runs of the same methods name the same winners on a quiet machine and beside bursts of other "
        "work? The methods are those of the config `speed` at temperature 0, with eager passes.",
        "python -m treespec.experiments.benchmarks.same_verdicts",
        trust.same_verdicts,
    ),
    "honest_cost": _benchmark(
        "honest_cost",
        "benchmarks",
        "Do adjusted times charge the right cost to methods whose steps really differ in cost? Measured "
        "on a quiet machine, where totals are right.",
        trust.honest,
    ),
    "interleaved_estimator": _benchmark(
        "interleaved_estimator",
        "studies",
        "How large are the errors of adjusted times on simulated machines?",
        trust.estimator,
    ),
    "interleaved_estimator, recorded": Section(
        "interleaved_estimator_recorded",
        "The same with slowdowns that were recorded on this machine (`benchmarks.slowdown_traces`).",
        "python -m treespec.experiments.studies.interleaved_estimator --traces FOLDER",
        trust.estimator,
    ),
    "until_simulation": _benchmark(
        "until_simulation",
        "studies",
        "How often do runs that stop once they are decided name a winner among equally fast methods, and "
        "how many prompts do they need?",
        trust.until,
    ),
    "loop_overhead": _benchmark(
        "loop_overhead",
        "benchmarks",
        "How much of a step does the decoding loop spend outside the models?",
        benchmarks.overhead,
    ),
    "search_speed": _benchmark(
        "search_speed",
        "benchmarks",
        "How long does it take to search for a tree?",
        benchmarks.speed_of_search,
    ),
    "bootstrap_coverage": _benchmark(
        "bootstrap_coverage",
        "studies",
        "Do the intervals contain the true value as often as they claim?",
        trust.coverage,
    ),
    "lossless_power": _benchmark(
        "lossless_power",
        "studies",
        "How often does `treespec check-lossless` notice a biased rule?",
        trust.power,
    ),
    "fault_injection": Section(
        "fault_injection",
        "Do runs survive kills, interrupts, damaged files and full disks?",
        "PYTHONPATH=tests/helpers python -m fault_injection",
        trust.faults,
    ),
    "sweep_faults": Section(
        "sweep_faults",
        "Do sweeps survive kills?",
        "PYTHONPATH=tests/helpers python -m sweep_faults",
        trust.sweep_faults,
    ),
}


def main() -> None:
    """Write both pages."""
    if not README.is_file():
        raise SystemExit(
            f"{README} is missing: run this command in a clone of the treespec repository"
        )
    write_whole(PAGE, results_page())
    write_whole(README, filled(README.read_text(encoding="utf-8")))
    print(f"written: {PAGE}, {README}")


if __name__ == "__main__":
    main()

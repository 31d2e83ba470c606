"""The full proof: every lossless rule, every law that it covers, every tree of up to six nodes.

    python -m treespec.experiments.lossless.prove [--nodes 6] [--tables 20] [--out proof.json]

Two theorems by exact enumeration of the project's code. *One step*: the law of a step's tokens, completed
by the target's own law, is the target's law of depth + 1 tokens, in float64 and in float32. *Composition*:
three tokens through the real `decode`, with caches and pending tokens passed from step to step, follow the
target's law. In addition the rules are proved in exact fractions, without any error, on small trees.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import chain, product
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from treespec.errors import in_words
from treespec.experiments.config.files import require_own
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.manifest import environment
from treespec.experiments.report.table import Column, Table
from treespec.experiments.report.terminal import print_table, say
from treespec.files import write_whole
from treespec.sampling.distributions import Sampling
from treespec.testing import (
    Case,
    Proof,
    TabularModel,
    adversarial_pairs,
    covers,
    output_law,
    plane_trees,
    random_pairs,
    random_table,
    target_law,
)
from treespec.testing.lossless import TOLERANCE
from treespec.tree import Law, TreeShape
from treespec.verify import RULES, Rule

VOCAB = 3
COMPOSED_TOKENS = 3

MOST_FAILURES = 10


@dataclass(frozen=True)
class Job:
    """A part of the proof, for one process.

    Args:
        theorem: `one step`, `fractions` or `composition`.
        shape: the tree.
        law: how children are drawn.
        tables: number of random pairs of tables, besides all adversarial ones (composition: all pairs).
    """

    theorem: str
    shape: TreeShape
    law: Law
    tables: int

    @property
    def weight(self) -> float:
        """A rough estimate of the job's duration, to start long jobs first."""
        drawn = 0 if self.law is Law.DETERMINISTIC else self.shape.size
        return VOCAB**drawn * self.tables * (30 if self.theorem == "composition" else 1)


@dataclass(frozen=True)
class Result:
    theorem: str
    rule: str
    law: str
    proof: Proof
    failure: str | None = None


def jobs(nodes: int = 6, tables: int = 20) -> list[Job]:
    parts = []
    shapes = chain.from_iterable(map(plane_trees, range(1, nodes + 1)))
    for shape, law in product(shapes, Law):
        parts.append(Job("one step", shape, law, tables))
        if shape.size <= 3:
            parts.append(Job("fractions", shape, law, 3))
        if shape.size <= 4:
            parts.append(Job("composition", shape, law, 2))
    return sorted(parts, key=lambda job: -job.weight)


def prove(job: Job) -> list[Result]:
    """Run one part for every lossless rule that covers its tree and law."""
    torch.set_num_threads(1)
    rules = [r for r in RULES.values() if r.lossless and job.law in r.laws]
    if job.theorem == "composition":
        return [
            _composed(job, rule)
            for rule in rules
            if covers(rule, job.shape, job.law, _composed_vocab(job))
        ]
    results = []
    for one_hot in (False, True):
        covering = [
            r for r in rules if r.one_hot == one_hot and covers(r, job.shape, job.law, VOCAB)
        ]
        proofs: dict[str, Proof] = {str(r): Proof(0, 0, 0.0) for r in covering}
        failures: dict[str, str] = {}
        exact = job.theorem == "fractions"
        sampling = Sampling(temperature=0.0) if one_hot else Sampling()
        dtypes = (torch.float64,) if exact else (torch.float64, torch.float32)
        random = (random_pairs(VOCAB, job.tables, 0, [sampling], dtype) for dtype in dtypes)
        adversarial = (adversarial_pairs(VOCAB, 0, one_hot, dtype) for dtype in dtypes)
        for pair in chain(*random, *adversarial) if covering else ():
            case = Case(job.shape, job.law, pair)
            oracle = case.oracle(exact=exact)  # drafted trees are the same for all rules
            for rule in covering:
                try:
                    proofs[str(rule)] += case.prove(rule, oracle, exact)
                except Exception as error:  # one rule's failure must not end an hour's work
                    failures.setdefault(
                        str(rule), f"{rule}, {job.law}, {pair.name}: {in_words(error, 'the rule')}"
                    )
        results += [
            Result(job.theorem, name, str(job.law), proof, failures.get(name))
            for name, proof in proofs.items()
        ]
    return results


def _composed(job: Job, rule: Rule) -> Result:
    proof, failure = Proof(0, 0, 0.0), None
    sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling()
    vocab = _composed_vocab(job)
    for seed in range(job.tables):
        target, draft = (TabularModel(random_table(vocab, 2 * seed + i), vocab) for i in (0, 1))
        try:
            law = output_law(
                rule,
                job.shape,
                job.law,
                target=target,
                draft=draft,
                tokens=COMPOSED_TOKENS,
                sampling=sampling,
            )
        except Exception as error:  # one rule's failure must not end an hour's work
            return Result(
                job.theorem,
                str(rule),
                str(job.law),
                proof,
                f"{rule}: {in_words(error, 'the rule')}",
            )
        error = float((law.probs - target_law(target, (0,), COMPOSED_TOKENS, sampling)).abs().max())
        proof += Proof(1, law.runs, error)
        if not error <= TOLERANCE:
            failure = failure or f"{rule} through decode on {job.shape.parents}: error {error:.3g}"
    return Result(job.theorem, str(rule), str(job.law), proof, failure)


def _composed_vocab(job: Job) -> int:
    """Vocabulary size: 2 for trees of four nodes if the law can draw their siblings from 2 tokens, else 3.

    The smaller vocabulary limits the number of branches, which multiplies with every step.
    """
    distinct = job.law is not Law.IID and max(map(len, job.shape.children)) > 2
    return VOCAB if job.shape.size < 4 or distinct else 2


def proofs(todo: Sequence[Job]) -> Iterator[tuple[int, int, list[Result]]]:
    with ProcessPoolExecutor() as pool:
        pending = [pool.submit(prove, job) for job in todo]
        for done, future in enumerate(as_completed(pending), start=1):
            yield done, len(todo), future.result()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m treespec.experiments.lossless.prove", description=__doc__
    )
    parser.add_argument("--nodes", type=int, default=6, help="size of the largest trees")
    parser.add_argument("--tables", type=int, default=20, help="number of random pairs of tables")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args(arguments)
    if options.out:
        try:
            require_own(options.out, ("proved", "not_proved"), "record of this command")
        except ConfigError as error:
            parser.error(str(error))
    console, start, machine = Console(), time.perf_counter(), environment()
    table: dict[tuple[str, str, str], Proof] = defaultdict(lambda: Proof(0, 0, 0.0))
    failures: list[str] = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("proving", total=None)
        for done, total_parts, results in proofs(jobs(options.nodes, options.tables)):
            for result in results:
                table[result.theorem, result.rule, result.law] += result.proof
                failures += [result.failure] if result.failure else []
            progress.update(bar, completed=done, total=total_parts)
            if options.out:  # after every part, so that a killed proof keeps its results
                record = {
                    **machine,
                    "parts": done,
                    "of_parts": total_parts,
                    "seconds": time.perf_counter() - start,
                    "proved": [
                        {"theorem": theorem, "rule": rule, "law": law, **asdict(proof)}
                        for (theorem, rule, law), proof in sorted(table.items())
                    ],
                    "not_proved": failures,
                }
                write_whole(options.out, json.dumps(record, indent=1) + "\n")
    seconds = time.perf_counter() - start
    print_table(_shown(table), console)
    total = sum(table.values(), Proof(0, 0, 0.0))
    say(
        console,
        f"{total.cases:,} cases, {total.runs:,} branches, largest error {total.largest_error:.2g}, "
        f"{seconds / 60:.1f} minutes",
    )
    for failure in failures[:MOST_FAILURES]:
        say(console, f"NOT PROVED: {failure}")
    return 1 if failures or not total.cases else 0


Row = tuple[tuple[str, str, str], Proof]

COLUMNS = (
    Column[Row]("theorem", lambda row: row[0][0], left=True),
    Column[Row]("rule", lambda row: row[0][1], left=True),
    Column[Row]("law", lambda row: row[0][2], left=True),
    Column[Row]("cases", lambda row: f"{row[1].cases:,}"),
    Column[Row]("branches", lambda row: f"{row[1].runs:,}"),
    Column[Row]("largest error", lambda row: f"{row[1].largest_error:.1g}"),
)


def _shown(table: dict[tuple[str, str, str], Proof]) -> Table:
    order = list(RULES)
    return Table(
        "by exact enumeration",
        COLUMNS,
        sorted(table.items(), key=lambda row: (row[0][0], order.index(row[0][1]), row[0][2])),
    )


if __name__ == "__main__":
    sys.exit(main())

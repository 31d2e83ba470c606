"""What a level of drafting does with its logits: operation by operation, as drafters do it, or compiled.

    python -m treespec.experiments.benchmarks.draft_heads [--rounds 150] [--no-save]

A *head* looks whether logits are finite, makes probabilities of them and chooses children. Each call comes
behind a pass of the embedded draft, as in the loop: then neither code nor data are in the nearest caches.
A compiled head is called without guards, as compiled passes are, and its results are read. Also counted:
how many of 100,000 draws differ between both from the same logits and uniforms, in float32.
"""

import statistics
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from treespec import Law, Sampling, TorchCoins, load_pair
from treespec.children import top_k
from treespec.coins import inverse_cdf
from treespec.distributions import require_finite, without
from treespec.experiments.benchmarks.results_file import save
from treespec.experiments.benchmarks.timing import in_turns, seconds_of
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.report.terminal import print_table, say

ROWS, VOCAB, PREFIX = 3, 4096, 64
DRAWS, BATCH = 100_000, 1_000
GOAL = 1
HEADS = {"the best token": 0, "one drawn": 1, "two without replacement": 2}
"""With the number of draws of a row."""

COLUMNS = (
    keyed("head", "head", left=True),
    keyed("operation by\noperation µs", "eager_us", ".0f"),
    keyed("compiled µs", "compiled_us", ".0f"),
    keyed("ratio", "compiled_over_eager", ".2f"),
    keyed(f"different of\n{DRAWS:,} draws", "different"),
)


def best(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    """The head of temperature 0."""
    return logits.argmax(-1, keepdim=True), logits.amin(), logits.amax()


def drawn(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    """The head of temperature 1, without a branch that reads a value."""
    probs = logits.float().softmax(-1)
    found = [_drawn(probs, uniforms[:, :1])]
    for i in range(1, uniforms.shape[1]):
        elder = torch.cat(found, dim=1)
        rest = probs.scatter(-1, elder, 0.0)
        mass = rest.sum(-1, keepdim=True)
        others = torch.ones_like(rest).scatter(-1, elder, 0.0)
        others = others / others.sum(-1, keepdim=True)
        row = torch.where(mass > 0, rest / mass, others)
        found.append(_drawn(row, uniforms[:, i : i + 1]))
    return torch.cat(found, dim=1), logits.amin(), logits.amax(), probs


def _drawn(probs: Tensor, uniforms: Tensor) -> Tensor:
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    points = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, points, right=True)


def compiled(head: Callable[..., Any], draws: int, dtype: torch.dtype) -> Callable[..., Any]:
    """The code that the compiler made, for any number of rows, called as it is."""
    caught: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        caught.append(compile_fx(graph, inputs, config_patches={"cpp_wrapper": True}))

        def first(*given: Any) -> Any:
            caught.append(given)
            return caught[0](*given)

        return first

    logits, uniforms = torch.randn(5, VOCAB).to(dtype), torch.rand(5, max(draws, 1)).double()
    torch._dynamo.mark_static(logits, 1)
    torch._dynamo.mark_static(uniforms, 1)
    torch.compile(head, fullgraph=True, dynamic=True, backend=backend)(logits, uniforms)
    code, given = caught

    def call(logits: Tensor, uniforms: Tensor) -> Any:
        tensors = iter((logits, uniforms))
        return code(*(next(tensors) if isinstance(x, Tensor) else len(logits) for x in given))

    return call


def step(draws: int) -> Callable[[Tensor], object]:
    """What drafters do with the logits of a level."""
    coins, sampling = TorchCoins(0), Sampling()

    def run(logits: Tensor) -> object:
        require_finite(logits, "draft", range(len(logits)))
        if not draws:
            return top_k(logits, 1).tolist()
        return coins.draw_many(sampling(logits), draws, Law.WITHOUT_REPLACEMENT).tolist()

    return run


def compiled_step(head: Callable[..., Any], draws: int) -> Callable[[Tensor], object]:
    """The same by a compiled head."""
    coins = TorchCoins(0)

    def run(logits: Tensor) -> object:
        taken = [coins.uniform() for _ in range(len(logits) * max(draws, 1))]
        uniforms = torch.tensor(taken, dtype=torch.float64).view(len(logits), -1)
        tokens, low, high, *_ = head(logits, uniforms)
        return tokens.tolist(), low.item(), high.item()

    return run


def differing(head: Callable[..., Any], draws: int) -> int:
    """How many of `DRAWS` draws (pairs, of two) differ from those of our functions, in float32."""
    generator, different = torch.Generator().manual_seed(0), 0
    for _ in range(DRAWS // BATCH):
        logits = 2 * torch.randn(BATCH, VOCAB, generator=generator)
        uniforms = torch.rand(BATCH, draws, generator=generator, dtype=torch.float64)
        probs = Sampling()(logits)
        found = inverse_cdf(probs, uniforms[:, :1])
        for i in range(1, draws):
            row = without(probs, found)
            found = torch.cat([found, inverse_cdf(row, uniforms[:, i : i + 1])], dim=1)
        different += int((found != head(logits, uniforms)[0]).any(-1).sum())
    return different


def main(
    rounds: Annotated[int, typer.Option(min=3, help="calls of each head that count")] = 150,
    no_save: Annotated[bool, typer.Option("--no-save", help="write no file")] = False,
) -> None:
    """Measure the heads of a level, print and save them."""
    console, rows = Console(width=110), []
    model = load_pair("embedded", dtype="bfloat16").draft.fresh()
    with torch.inference_mode():
        model.prefill(torch.arange(PREFIX) + 5)
        logits = torch.randn(ROWS, VOCAB).bfloat16()

        def timed(work: Callable[[Tensor], object]) -> Callable[[], float]:
            def run() -> float:
                model.run(torch.tensor([7]), (-1,))
                model.keep(())
                return seconds_of(lambda: work(logits))

            return run

        for name, draws in HEADS.items():
            head = drawn if draws else best
            made = compiled(head, draws, torch.bfloat16)
            ways = {"eager": timed(step(draws)), "compiled": timed(compiled_step(made, draws))}
            spent = in_turns(ways, rounds, warm_up=10)
            ratios = [b / a for a, b in zip(spent["eager"], spent["compiled"], strict=True)]
            rows.append({
                "head": name,
                "eager_us": round(1e6 * statistics.median(spent["eager"]), 1),
                "compiled_us": round(1e6 * statistics.median(spent["compiled"]), 1),
                "compiled_over_eager": round(statistics.median(ratios), 2),
                "different": differing(compiled(head, draws, torch.float32), draws) if draws else None,
            })  # fmt: skip
    title = f"heads of {ROWS} rows of {VOCAB} tokens, bfloat16, {torch.get_num_threads()} threads"
    print_table(Table(title, COLUMNS, rows), console)
    most = max(row["different"] or 0 for row in rows)
    how = "met" if most <= GOAL else "MISSED"
    verdict = f"draws that differ: at most {most} of {DRAWS:,}, goal {GOAL}: {how}"
    say(console, verdict)
    if not no_save:
        setting = {"rows": ROWS, "vocab": VOCAB, "threads": torch.get_num_threads()}
        data = {"setting": setting, "rows": rows, "verdicts": [verdict]}
        say(console, f"written: {save('draft_heads', data)}")


if __name__ == "__main__":
    typer.run(main)

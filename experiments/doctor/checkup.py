"""Run all checks and tests, in the order in which they are reported."""

from collections.abc import Callable
from functools import partial
from itertools import product

from treespec.experiments.doctor import machine, self_test, software
from treespec.experiments.doctor.findings import Checkup, Fact, Speed, ask, attempt
from treespec.experiments.doctor.speed import meaning, measure_speed

__all__ = ["QUESTIONS", "examine"]

QUESTIONS: dict[str, Callable[[], Fact | list[Fact]]] = {
    "Python": software.python,
    "treespec": software.treespec,
    "torch": software.torch_build,
    "transformers": software.transformers,
    "Triton": software.triton,
    "tree attention": software.attention,
    "kernel compiler": software.compiler,
    "compiled passes": software.passes,
    "captured passes": software.captured_passes,
    "GPU": machine.gpus,
    "memory": machine.memory,
    "disk": machine.disk,
    "other processes": machine.busy,
    "energy": machine.energy,
    "SLURM": machine.slurm,
}

DTYPES = ("float32", "bfloat16")


def examine(quick: bool = False, say: Callable[[str], None] = lambda text: None) -> Checkup:
    """Collect facts, run the self-test, and time passes over a few rows.

    Args:
        quick: only collect facts and load the pair; skip all other tests and times.
        say: called with the name of each check and test before it begins.
    """
    facts: list[Fact] = []
    for name, question in QUESTIONS.items():
        say(name)
        facts += ask(name, question)
    say("loading the embedded pair")
    loaded, pair = self_test.pair_test()
    if quick:
        return Checkup(tuple(facts), (loaded,), (), ())
    devices = ["cpu", *(["cuda"] if any(fact.name == "GPU 0" for fact in facts) else [])]
    tests: dict[str, Callable[[], str]] = {"acceptance rules are exact": self_test.proof}
    if pair is not None:
        tests["trees decode as generate does"] = partial(self_test.generation_agrees, pair)
        tests["what can be told apart"] = partial(self_test.tell_apart, pair)
    for device in devices:
        tests[f"implementations of attention agree on {device}"] = partial(
            self_test.attention_agrees, device
        )
    tests["kernels compile ahead of time"] = self_test.kernels_compile
    trials, speeds = [loaded], []
    for name, test in tests.items():
        say(name)
        trials.append(attempt(name, test))
    for device, dtype in product(devices, DTYPES):
        say(f"timing passes on {device} in {dtype}")
        test = partial(_timed, device, dtype, speeds)
        trials.append(attempt(f"passes on {device} in {dtype}", test))
    return Checkup(tuple(facts), tuple(trials), tuple(speeds), meaning(speeds))


def _timed(device: str, dtype: str, speeds: list[Speed]) -> str:
    """Time passes, append the result to `speeds`, and return it in words."""
    speed = measure_speed(device, dtype)
    speeds.append(speed)
    times = ", ".join(f"{ms:.1f} ms for {rows}" for rows, ms in speed.pass_ms.items())
    return f"{times} rows; reads {speed.read_gb_s:.0f} GB/s, {speed.gflop_s:.0f} GFLOP/s"

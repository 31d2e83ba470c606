"""The draft source whose steps take longer by a known share."""

import time

from treespec.experiments.benchmarks.spinning import Spinning


class Slow:
    """A drafter whose steps take 20 ms."""

    max_depth, max_length = 1, 99

    def prefill(self, prompt):
        pass

    def propose(self, coins):
        time.sleep(0.02)

    def commit(self, step):
        pass


class Kept:
    """A step that keeps three tokens."""

    tokens = (1, 2, 3)


def test_a_step_lasts_longer_by_its_share():
    drafter = Spinning(Slow(), lambda kept: 0.05)
    ratios = []
    for _ in range(5):
        start = time.perf_counter()
        drafter.propose(None)
        before = time.perf_counter() - start
        drafter.commit(Kept)
        ratios.append((time.perf_counter() - start) / before)
    assert abs(min(ratios) - 1.05) < 0.01


def test_the_share_may_depend_on_the_tokens_kept():
    asked = []
    drafter = Spinning(Slow(), lambda kept: asked.append(kept) or 0.0)
    for _ in range(2):
        drafter.prefill(None)
        for _ in range(3):
            drafter.propose(None)
            drafter.commit(Kept)
    assert asked == [0, 3, 6] * 2

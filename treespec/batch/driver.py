"""Decode many texts side by side: each by the ordinary loop, with one pass of the target a step for all.

Every text runs `decode` on a stack of its own (`paused`). Where it needs a pass, it stops; once all texts
have stopped, the driver runs one pass over the nodes of all that wait for the same weights, and each goes
on with its own scores. Passes of draft models come first, level by level, until every text waits for the
target; between them, texts may decide together (`meeting`). So trees of unequal size and depth need no
padding, and a text that is done leaves at once.
"""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.batch.meeting import MEET, Decision
from treespec.batch.paused import paused
from treespec.batch.room import bytes_of, lacking_room, models_of, reserve
from treespec.checks import instance, integer, sequence
from treespec.decoding import decode
from treespec.errors import InvalidArgument, in_words
from treespec.models.waiting import WAIT, Joinable, Nodes
from treespec.protocols import Coins, Drafter, Observer, Target, Verifier
from treespec.sampling.distributions import Sampling
from treespec.step import Scores, Step
from treespec.stopping import Stop


@dataclass(frozen=True, eq=False)
class Text:
    """What `decode` needs to decode a text; see there.

    Target, drafter and coins belong to one text. Targets made of one model share its weights, and so do
    the drafters' models.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    prompt: Int[Tensor, "T"] = field(repr=False)
    sampling: Sampling
    coins: Coins
    max_new_tokens: int
    stop: Stop = lambda ids: False
    observer: Observer | None = None

    def steps(self) -> Iterator[Step]:
        """Decode this text alone."""
        return decode(
            self.target,
            self.drafter,
            self.verifier,
            self.prompt,
            sampling=self.sampling,
            coins=self.coins,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
            observer=self.observer,
        )


class Failed(NamedTuple):
    """A text that ended with an error; what it yielded before holds.

    Args:
        error: what `decode` raised for this text.
    """

    error: Exception


@runtime_checkable
class Watch(Protocol):
    """Observes who works in a batch. Texts are numbered as they are given."""

    def text(self, text: int, /) -> AbstractContextManager[object]:
        """Return a context that lasts while a text goes on by itself, up to its next pass or step."""

    def joined(
        self, texts: Sequence[int], drafts: bool, nodes: int, /
    ) -> AbstractContextManager[object]:
        """Return a context that lasts as long as a pass for these texts, of a draft model or the target."""


class NullWatch:
    """A watch that records nothing."""

    def text(self, text: int) -> AbstractContextManager[object]:
        """Return an empty context."""
        return nullcontext()

    def joined(
        self, texts: Sequence[int], drafts: bool, nodes: int
    ) -> AbstractContextManager[object]:
        """Return an empty context."""
        return nullcontext()


class _Request(NamedTuple):
    """A pass that a text waits for."""

    model: Joinable
    nodes: Nodes


class _Meeting(NamedTuple):
    """A decision that a text takes with others."""

    decision: Decision
    bid: Any


def decode_many(
    texts: Sequence[Text], *, places: int | None = None
) -> Iterator[tuple[int, Step | Failed]]:
    """Decode texts side by side, yielding every step as soon as it is committed.

    Each text is what `decode` gives for it alone: its law does not depend on the others, nor, in exact
    arithmetic, does the text itself. In floating point, logits differ in their last bits with the number
    of nodes in a pass, which can decide between near-ties.

    Passes over trees are joined. A prompt is run alone, when its text begins; so is a tree on a model
    that cannot join passes (`treespec.models.waiting.Joinable`), such as one of yours.

    Args:
        texts: the texts; each with its own target, drafter and coins.
        places: texts that are decoded at the same time, by default all. When one ends, the next begins, and
            the caches of the one that has ended are freed.

    Yields:
        Pairs of a text's index and its next step; or `Failed`, once, if the text ended with an error, while
        the others go on. Texts go in rounds: each makes one step before any makes its next. Read a step's
        scores before the next one is requested.

    Raises:
        InvalidArgument: if an argument has the wrong type, two texts share a target, a drafter or coins, or
            memory does not hold the caches of all texts that are decoded at the same time.

    Example:
        >>> from treespec import TorchCoins, verify
        >>> from treespec.draft import NoDrafter
        >>> from treespec.target import ModelTarget
        >>> from treespec.testing import TabularModel, random_table
        >>> model = TabularModel(random_table(3, seed=0), 3)
        >>> def text(prompt, seed):
        ...     return Text(
        ...         ModelTarget(model), NoDrafter(), verify.naive, torch.tensor(prompt),
        ...         Sampling(temperature=1.0), TorchCoins(seed), max_new_tokens=4,
        ...     )
        >>> steps = [*decode_many([text([0], 1), text([2, 1], 2)])]
        >>> [sum(len(step.tokens) for i, step in steps if i == text) for text in (0, 1)]
        [4, 4]
    """
    given, most = _checked(texts, places)
    return (made for made in _driven(given, most, NullWatch()) if made is not None)


def decode_rounds(
    texts: Sequence[Text], *, places: int | None = None, watch: Watch | None = None
) -> Iterator[list[tuple[int, Step | Failed]]]:
    """Decode texts as `decode_many` does, yielding what all of them did in each round.

    A round is one step of every text that is being decoded: one pass of the target, unless some cannot
    join it.

    Args:
        texts: as `decode_many` takes them.
        places: as `decode_many` takes them.
        watch: observes who works, to time it.

    Raises:
        InvalidArgument: as in `decode_many`.
    """
    given, most = _checked(texts, places)
    return _gathered(_driven(given, most, watch or NullWatch()))


def _checked(texts: Sequence[Text], places: int | None) -> tuple[Sequence[Text], int]:
    given = sequence("texts", texts, "texts")
    for i, text in enumerate(given):
        instance(f"texts[{i}]", text, Text, "a Text")
    for what in ("target", "drafter", "coins"):
        _require_own(given, what)
    most = len(given) if places is None else integer("places", places, least=1)
    sizes = [bytes_of(*parts) for text in given if (parts := _room_for(text)) is not None]
    if (why := lacking_room(sizes, most)) is not None:
        raise InvalidArgument(f"{why}; decode fewer at a time (places)")
    return given, most


def _room_for(text: Text) -> tuple[Target, Drafter, int] | None:
    """What the size of a text's caches depends on; None for a text that `decode` will refuse."""
    prompt, budget = text.prompt, text.max_new_tokens
    if not (isinstance(prompt, Tensor) and prompt.ndim == 1 and isinstance(budget, int)):
        return None
    tokens = len(prompt) + budget
    longest = getattr(text.target, "max_length", tokens)
    return (text.target, text.drafter, tokens) if tokens <= longest else None


def _gathered(
    made: Iterator[tuple[int, Step | Failed] | None],
) -> Iterator[list[tuple[int, Step | Failed]]]:
    """The steps between two ends of rounds as lists."""
    current: list[tuple[int, Step | Failed]] = []
    for pair in made:
        if pair is None:
            yield current
            current = []
        else:
            current.append(pair)
    if current:
        yield current


def _driven(
    texts: Sequence[Text], places: int, watch: Watch
) -> Iterator[tuple[int, Step | Failed] | None]:
    """The steps of all texts, and None after each round."""
    lanes: dict[int, _Lane] = {}
    later, holding = iter(range(len(texts))), set[int]()
    try:
        while True:
            going = [*lanes]
            while going or len(lanes) < places:
                if not going:
                    if (i := next(later, None)) is None:
                        break
                    for ended in holding - lanes.keys():
                        _free(texts[ended])
                    holding = {*lanes, i}
                    if (parts := _room_for(texts[i])) is not None:
                        reserve(*parts)
                    lanes[i] = _Lane(texts[i])
                    going = [i]
                yield from _go_on(lanes, going.pop(0), None, watch)
            if not lanes:
                return
            while groups := _next_groups(lanes):
                for group in groups:
                    for i, result in zip(group, _results(lanes, group, watch), strict=True):
                        yield from _go_on(lanes, i, result, watch)
            yield None
    finally:
        _end(lanes)


class _Lane:
    """A text that is being decoded, and what it waits for; None if it has made its step."""

    def __init__(self, text: Text) -> None:
        self.waits: _Request | _Meeting | None = None
        self.target = getattr(text.target, "model", None)
        self.steps: Generator[Step | _Request | _Meeting, Any] = paused(partial(_decoded, text))

    @property
    def drafts(self) -> bool:
        """Whether it waits for a pass of a draft model."""
        return isinstance(self.waits, _Request) and self.waits.model is not self.target

    @property
    def meets(self) -> bool:
        """Whether it waits for a decision."""
        return isinstance(self.waits, _Meeting)


def _decoded(text: Text, give: Callable[[Step | _Request | _Meeting], Any]) -> None:
    """Decode a text, handing over its steps and what it waits for."""
    WAIT.set(lambda model, nodes: give(_Request(model, nodes)))
    MEET.set(lambda decision, bid: give(_Meeting(decision, bid)))
    for step in text.steps():
        give(step)


def _go_on(
    lanes: dict[int, _Lane], i: int, result: Any, watch: Watch
) -> Iterator[tuple[int, Step | Failed]]:
    """Let a text go on with what it waited for, up to its next wait or step; drop it at its end."""
    lane = lanes[i]
    lane.waits = None
    with watch.text(i):
        value = _next_of(lane, i, result)
    if value is None or isinstance(value, Failed):
        del lanes[i]
    if isinstance(value, _Request | _Meeting):
        lane.waits = value
    elif value is not None:
        yield i, value


# Not around the generators: if signatures are checked (TREESPEC_STRICT), torch does not see that they are
# generators, and would set its mode only where they are made.
@torch.inference_mode()
def _next_of(lane: _Lane, i: int, result: Any) -> Step | _Request | _Meeting | Failed | None:
    """What text i hands over next, given what it waited for or an error; None if it has ended."""
    value: Step | _Request | _Meeting | Failed | None
    try:
        steps = lane.steps
        value = steps.throw(result) if isinstance(result, Exception) else steps.send(result)
    except StopIteration:
        value = None
    except Exception as error:
        value = Failed(error)
    if not torch.is_inference_mode_enabled():
        raise InvalidArgument(
            f"texts[{i}]: its drafter, rule or stop rule has left inference mode across a pass of a "
            "model; close such a context before the model runs"
        )
    return value


def _free(text: Text) -> None:
    """Give the memory of a text's caches to the next one."""
    for model in models_of(text.target, text.drafter):
        model.release()


@torch.inference_mode()
def _end(lanes: Mapping[int, _Lane]) -> None:
    """End texts where they stand."""
    for lane in lanes.values():
        lane.steps.close()


def _next_groups(lanes: Mapping[int, _Lane]) -> list[list[int]]:
    """The texts that share each of the next passes or decisions.

    Texts decide once none waits for a draft, and the target runs once none waits for a decision.
    """
    waiting = sorted(i for i, lane in lanes.items() if lane.waits is not None)
    drafting = [i for i in waiting if lanes[i].drafts]
    meeting = [i for i in waiting if lanes[i].meets]
    groups: dict[Hashable, list[int]] = {}
    for i in drafting or meeting or waiting:
        waits = lanes[i].waits
        if isinstance(waits, _Meeting):
            groups.setdefault(waits.decision, []).append(i)
        elif waits is not None:
            groups.setdefault((type(waits.model), waits.model.joins), []).append(i)
    return [*groups.values()]


def _results(lanes: Mapping[int, _Lane], group: Sequence[int], watch: Watch) -> Sequence[Any]:
    """What the texts of a group wait for, or the error that each of them meets."""
    meetings = [waits for i in group if isinstance(waits := lanes[i].waits, _Meeting)]
    if not meetings:
        return _passed(lanes, group, watch)
    try:
        return meetings[0].decision([meeting.bid for meeting in meetings])
    except Exception as error:
        return [error] * len(group)


@torch.inference_mode()
def _passed(
    lanes: Mapping[int, _Lane], group: Sequence[int], watch: Watch
) -> Sequence[Scores | Exception]:
    """The scores that texts wait for, by one pass; or the error that a text's nodes meet in a pass."""
    parts = [waits for i in group if isinstance(waits := lanes[i].waits, _Request)]
    nodes = sum(len(part.nodes.tokens) for part in parts)
    try:
        with watch.joined(group, lanes[group[0]].drafts, nodes):
            return parts[0].model.run_together(parts)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise torch.OutOfMemoryError(
            f"a pass over {nodes} nodes of {len(parts)} texts at a time: {in_words(error, 'the pass')}; "
            "decode fewer at a time (places)"
        ) from error
    except Exception as error:
        if len(group) == 1:
            return [error]
        # Whose nodes are at fault?
        return [scores for i in group for scores in _passed(lanes, [i], watch)]


def _require_own(texts: Sequence[Text], what: str) -> None:
    """Refuse an object that two texts would change in turn."""
    seen: dict[int, int] = {}
    for i, text in enumerate(texts):
        first = seen.setdefault(id(getattr(text, what)), i)
        if first != i:
            raise InvalidArgument(
                f"texts[{first}] and texts[{i}] have the same {what}: make one for each text"
            )

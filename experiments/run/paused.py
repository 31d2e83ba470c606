"""A function that is paused in the middle of its calls, as an iterator."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from treespec.errors import Unavailable

__all__ = ["paused"]

_T = TypeVar("_T")


def paused(function: Callable[[Callable[[_T], None]], None]) -> Iterator[_T]:
    """Run a function up to each value that it gives, from however deep in its calls.

    The function has a stack of its own (a greenlet), so that it stops where it gives a value and goes on
    there when the next is asked for. What belongs to the thread is not of its own: grad mode, the random
    state of torch, warnings' filters. Who gives a value must put these right.

    Args:
        function: called with what gives a value.

    Yields:
        The values. What the function raises comes out where a value was asked for. An iterator that is
        closed before its end ends the function where it stands.

    Raises:
        Unavailable: without greenlet.
    """
    try:
        from greenlet import getcurrent, greenlet
    except ImportError:
        raise Unavailable(
            "the methods of transformers are paused by the package greenlet, which is missing: "
            "pip install greenlet"
        ) from None

    def give(value: _T) -> None:
        worker.parent.switch(value)

    worker = greenlet(function)
    arguments = (give,)
    try:
        while True:
            worker.parent = getcurrent()
            value = worker.switch(*arguments)
            if worker.dead:
                return
            yield value
            arguments = ()
    finally:
        if worker:  # paused: GreenletExit is raised where it stands
            worker.parent = getcurrent()
            worker.throw()

"""Turn a function that passes values to a callback into an iterator that is paused between values."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from treespec.errors import Unavailable

_T = TypeVar("_T")


def paused(function: Callable[[Callable[[_T], None]], None]) -> Iterator[_T]:
    """Iterate over the values that a function hands to its callback, however deep in its calls.

    The function has a stack of its own (a greenlet). It stops where it hands over a value and continues
    there when the next value is requested. State of the thread is shared with other code: grad mode,
    torch's random state, warning filters. The function must restore it after each value.

    Args:
        function: called with the callback.

    Yields:
        The values. Exceptions of the function are raised where a value is requested. Closing the iterator
        early ends the function where it is paused.

    Raises:
        Unavailable: if greenlet is not installed.
    """
    try:
        from greenlet import getcurrent, greenlet
    except ImportError:
        raise Unavailable(
            "pausing the methods of transformers needs the package greenlet, which is not installed: "
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
        if worker:  # it is paused: GreenletExit is raised inside the function
            worker.parent = getcurrent()
            worker.throw()

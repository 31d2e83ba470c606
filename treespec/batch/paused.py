"""Turn a function that passes values to a callback into a generator that is paused between values."""

from collections.abc import Callable, Generator
from contextvars import copy_context
from typing import TypeVar

from greenlet import getcurrent, greenlet

_T = TypeVar("_T")
_R = TypeVar("_R")


def paused(function: Callable[[Callable[[_T], _R]], None]) -> Generator[_T, _R]:
    """Iterate over the values that a function hands to its callback, however deep in its calls.

    The function has a stack of its own (a greenlet). It stops where it hands over a value and continues
    there when the next value is requested; what is then sent to the generator, the callback returns. State
    of the thread is shared with other code: grad mode, torch's random state, warning filters. The function
    must restore it after each value. Context variables are its own: a copy of those of the start.

    Args:
        function: called with the callback.

    Yields:
        The values. Exceptions of the function are raised where a value is requested; those that are thrown
        into the generator are raised in the function, where it is paused. Closing the generator early ends
        the function there.
    """

    def give(value: _T) -> _R:
        return worker.parent.switch(value)

    worker = greenlet(function)
    worker.gr_context = copy_context()
    resume = lambda: worker.switch(give)  # noqa: E731
    try:
        while True:
            worker.parent = getcurrent()
            value = resume()
            if worker.dead:
                return
            try:
                sent = yield value
                resume = lambda sent=sent: worker.switch(sent)  # noqa: E731
            except GeneratorExit:
                raise
            except BaseException as error:
                resume = lambda error=error: worker.throw(error)  # noqa: E731
    finally:
        if worker:  # it is paused: GreenletExit is raised inside the function
            worker.parent = getcurrent()
            worker.throw()

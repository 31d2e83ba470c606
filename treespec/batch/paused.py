"""Turn a function that passes values to a callback into a generator that is paused between values."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

try:
    from jaxtyping._storage import _shape_storage as checks_of_thread
except ImportError:  # a version that keeps them elsewhere
    checks_of_thread = threading.local()

_T = TypeVar("_T")
_R = TypeVar("_R")


def paused(function: Callable[[Callable[[_T], _R]], None]) -> Generator[_T, _R]:
    """Iterate over the values that a function hands to its callback, however deep in its calls.

    The function has a stack of its own (a greenlet). It stops where it hands over a value and continues
    there when the next value is requested; what is then sent to the generator, the callback returns. State
    of the thread is shared with other code: grad mode, torch's random state, warning filters. The function
    must restore it after each value. Context variables are its own: a copy of those of the start. So are
    the sizes of axes in calls whose shapes jaxtyping checks.

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
    checks: list[Any] = []
    resume = lambda: worker.switch(give)  # noqa: E731
    try:
        while True:
            worker.parent = getcurrent()
            with _checks(checks):
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
            with _checks(checks):
                worker.throw()


@contextmanager
def _checks(own: list[Any]) -> Iterator[None]:
    """Check the calls of one function: jaxtyping has one stack of running calls for all of a thread."""
    others = getattr(checks_of_thread, "memo_stack", [])
    checks_of_thread.memo_stack = own
    try:
        yield
    finally:
        checks_of_thread.memo_stack = others

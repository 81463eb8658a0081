"""Work that no handler of a signal may raise in the middle of, such as what a library does that cannot stand it."""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections.abc import Callable
from typing import Any, TypeVar

LOOK_AGAIN = 0.1  # seconds of waiting at a time; only matters if the wait itself was disturbed

T = TypeVar("T")


def undisturbed(function: Callable[[], T]) -> T:
    """What a function returns, or raises.

    Handlers of signals run in the main thread. If this is that, the function runs in another one meanwhile, and what a
    handler raises, KeyboardInterrupt for instance, is raised when the function has ended. It takes some 30 us.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    ended: list[tuple[Any, BaseException | None]] = []
    begun: list[int] = []
    ready = threading.Lock()
    ready.acquire()

    def work() -> None:
        try:
            ended.append((function(), None))
        except BaseException as error:
            ended.append((None, error))
        ready.release()

    raised: BaseException | None = None
    while not ended:
        try:
            if not begun:  # in one step of the interpreter, so that it cannot begin unnoticed
                begun.extend(map(start_new_thread, (work,), ((),)))
            ready.acquire(timeout=LOOK_AGAIN)
        except BaseException as error:
            if not begun and isinstance(error, RuntimeError):  # there are no more threads
                return function()
            raised = error
    result, error = ended[0]
    for problem in (raised, error):
        if problem is not None:
            raise problem
    return result

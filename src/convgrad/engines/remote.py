"""An engine in a process of its own, which may die or hang without taking ours along."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from time import monotonic
from typing import Any

from convgrad.engines.interface import EngineError, Unsupported
from convgrad.engines.worker import LENGTH, send

TIMEOUT = 300.0  # seconds for one answer


class Remote:
    """A handle on a worker; it runs only while it is asked something, so that its threads never spin beside others."""

    def __init__(self, name: str, threads: int, *, timeout: float = TIMEOUT) -> None:
        """No process before the first question."""
        self.name, self._threads, self._timeout = name, threads, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None

    def __enter__(self) -> Remote:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process."""
        self.close()

    def ask(self, request: str, *arguments: Any) -> Any:
        """The answer of `Worker.<request>`. EngineError if the library is absent, failed or died; Unsupported."""
        process = self._started()
        self._signal("SIGCONT")
        try:
            send(process.stdin, (request, arguments))
            header = self._read(LENGTH.size)
            status, value = pickle.loads(self._read(LENGTH.unpack(header)[0]))
        except BrokenPipeError:
            raise EngineError(self._obituary()) from None
        self._signal("SIGSTOP")
        if status == "ok":
            return value
        if status == "unsupported":
            raise Unsupported(value)
        raise EngineError(value.removeprefix("EngineError: "))

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, self._said):
            with contextlib.suppress(OSError):
                stream.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
            command = [sys.executable, "-P", "-m", "convgrad.engines.worker", self.name, str(self._threads)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)
        return self._process

    def _read(self, count: int) -> bytes:
        """Exactly so many bytes, within the time that is allowed."""
        stream = self._process.stdout
        end, parts = monotonic() + self._timeout, []
        while count:
            ready = os.name != "posix" or select.select([stream], [], [], max(0.0, end - monotonic()))[0]
            if not ready:
                self.close()
                raise EngineError(f"no answer within {self._timeout:.0f} s")
            part = os.read(stream.fileno(), min(count, 1 << 20))
            if not part:
                raise EngineError(self._obituary())
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _obituary(self) -> str:
        """How the process ended; the next question starts a new one."""
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().partition("\n")[0]
        self.close()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"the process died ({how})" + (f": {said[:200]}" if said else "")

    def _signal(self, name: str) -> None:
        if hasattr(signal, name) and self._process is not None:
            self._process.send_signal(getattr(signal, name))

"""From a problem to a call: compilation, caches, threads and memory."""

from convgrad.runtime.kernel import Kernel, kernel_for
from convgrad.runtime.threads import num_threads, set_num_threads

__all__ = ["Kernel", "kernel_for", "num_threads", "set_num_threads"]

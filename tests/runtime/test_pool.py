"""When workers that sleep are roused, and where they wake up. Each test has a process of its own."""

import os
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux about threads"),
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two processors"
    ),
]

BEGIN = """
import os, time
from convgrad.runtime import set_num_threads
from visits import Job, naps, worker_of
set_num_threads(2)
long, everywhere = Job(0.002), os.sched_getaffinity(0)
worker = worker_of(long)
def after_a_nap():
    time.sleep(0.02)
    return long()
"""


def test_a_worker_wakes_on_another_processor_than_its_caller(python, finish):
    """Wherever that is, also if it is bound there after workers began; and may go anywhere then."""
    program = BEGIN + (
        "def at_rest():\n"
        "    for _ in range(500):\n"
        "        if os.sched_getaffinity(worker) == everywhere: return True\n"
        "        time.sleep(0.01)\n"
        "for cpu in (min(everywhere), max(everywhere), min(everywhere)):\n"
        "    os.sched_setaffinity(0, {cpu})\n"
        "    places = [found[worker] for found in (after_a_nap() for _ in range(60)) if worker in found]\n"
        "    print(sum(place != cpu for place in places), len(places), at_rest())\n"
    )
    for line in finish(python(program)).splitlines():
        apart, helped, anywhere = line.split()
        assert anywhere == "True"
        assert int(helped) >= 10  # of 60: others may be on that processor
        assert int(apart) >= 0.8 * int(helped)


def test_a_limit_that_others_set_holds(python, finish):
    """With all threads bound to one processor, as by taskset, none is bound to another, or to none."""
    program = BEGIN + (
        "one = {max(everywhere)}\n"
        "after_a_nap(); time.sleep(0.02)\n"
        "for thread in os.listdir('/proc/self/task'): os.sched_setaffinity(int(thread), one)\n"
        "print([(set(after_a_nap().values()), os.sched_getaffinity(worker)) == (one, one) for _ in range(5)])\n"
    )
    assert finish(python(program)).strip() == str([True] * 5)


def test_a_short_job_after_a_pause_rouses_nobody_and_the_first_of_many_does(python, finish):
    program = BEGIN + (
        "def woken(job):\n"
        "    time.sleep(0.05)\n"
        "    before = naps(worker)\n"
        "    for _ in range(20): time.sleep(0.002); job()\n"
        "    time.sleep(0.05)\n"
        "    return naps(worker) - before\n"
        "short = Job(5e-6)\n"
        "time.sleep(0.05); short()\n"  # and now it is known
        "def helped():\n"
        "    time.sleep(0.05)\n"
        "    return any([worker in short() for _ in range(100)])\n"
        "print(woken(short), woken(long), sum(helped() for _ in range(20)))\n"
    )
    found = []
    for _ in range(3):  # what else a machine does comes between naps of milliseconds
        short, long, helped = map(int, finish(python(program)).split())
        found.append((short, long, helped))
        if short <= 3 and long >= 15 and helped >= 10:  # a short one that is disturbed seems long, and the next rouses
            return
    raise AssertionError(f"woken by short jobs, by long ones, and helped: {found}")

"""The disk cache: used across processes, and never trusted further than its checksum and its permissions."""

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_kernels import run_tiny, tiny_kernel

from convgrad.plan import machine
from convgrad.runtime import cache

posix = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
not_root = pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")

USE = """
from tiny_kernels import llvm_is_here, run_tiny, tiny_kernel
for tasks in (1, 5, 9):
    tiny = tiny_kernel(tasks)
    run_tiny(tiny, tasks)
    print("disk" if tiny.from_disk else "compiled")
print("LLVM" if llvm_is_here() else "no LLVM")
"""
ENTRY = cache.Entry(b"code", {"what": "a test"})


def files(folder):
    return sorted(folder.glob("*" + cache.SUFFIX))


def test_a_second_process_takes_what_the_first_compiled(python, finish):
    assert finish(python(USE)).split() == ["compiled"] * 3 + ["LLVM"]
    second = finish(python(USE)).split("\n")
    assert second[:3] == ["disk"] * 3
    if sys.platform.startswith("linux"):
        assert second[3] == "no LLVM"


def test_eight_processes_share_an_empty_cache(python, finish, cache_folder):
    for process in [python(USE) for _ in range(8)]:
        finish(process)
    assert finish(python(USE)).split()[:3] == ["disk"] * 3
    assert not list(cache_folder.glob(".writing-*"))


@pytest.mark.parametrize("length", [0, 3, 40, -1])
def test_a_torn_file_is_compiled_again_and_repaired(cache_folder, length):
    tiny_kernel(6)
    (file,) = (f for f in files(cache_folder))
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    torn = tiny_kernel(6)
    assert not torn.from_disk
    run_tiny(torn, 6)
    assert tiny_kernel(6).from_disk


def test_a_flipped_bit_is_noticed_anywhere(cache_folder):
    tiny_kernel(6)
    (file,) = files(cache_folder)
    whole = file.read_bytes()
    for position in range(0, len(whole), 37):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 16]) + whole[position + 1 :])
        assert cache.read(file.stem) is None, position


def test_a_file_under_another_name_is_not_taken(cache_folder):
    cache.write("one", ENTRY)
    os.rename(cache_folder / f"one{cache.SUFFIX}", cache_folder / f"two{cache.SUFFIX}")
    assert cache.read("two") is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_under_the_name_of_a_file_is_not_waited_for(cache_folder):
    cache.write("one", ENTRY)
    os.mkfifo(cache_folder / f"two{cache.SUFFIX}")
    found = []
    reader = threading.Thread(target=lambda: found.extend(map(cache.read, ("one", "two"))), daemon=True)
    reader.start()
    reader.join(10)
    assert found == [ENTRY, None]


def test_notes_that_are_not_ours_are_compiled_again(cache_folder):
    key = cache.key_of("kernel", "tiny 6", machine.current_machine())
    cache.write(key, ENTRY)
    assert not tiny_kernel(6).from_disk
    assert tiny_kernel(6).from_disk


def test_another_version_does_not_share(cache_folder, monkeypatch):
    tiny_kernel(6)
    monkeypatch.setattr(cache, "code_version", lambda: "convgrad 99")
    assert not tiny_kernel(6).from_disk


def test_another_cpu_does_not_share(cache_folder):
    here = machine.current_machine()
    tiny_kernel(6, here)
    assert tiny_kernel(6, here).from_disk
    assert not tiny_kernel(6, replace(here, l2_bytes=here.l2_bytes // 2)).from_disk
    if here.isa != "portable":
        assert not tiny_kernel(6, machine.machine_for("portable", triple=here.triple)).from_disk


def test_the_key_names_llvmlite_and_the_sources():
    assert "llvmlite 0." in cache.code_version()
    assert cache.key_of("kernel", 1, machine.current_machine()) != cache.key_of("pool", 1, machine.current_machine())


def test_the_key_changes_with_every_source_of_the_compiler():
    package = Path(cache.__file__).parent.parent
    marked = {name for name, _, _ in cache._marks_of(str(package), *cache._SOURCES)}
    compiler = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    assert marked == {name for name in compiler if name.startswith(cache._SOURCES)}
    assert {"dtypes.py", "codegen/isa/x86.py", "runtime/cache.py"} <= marked


def test_a_source_is_told_by_name_size_and_time(tmp_path):
    source = tmp_path / "plan" / "deep" / "blocks.py"
    source.parent.mkdir(parents=True)
    (source.parent / "__pycache__").mkdir()
    source.write_text("A = 1")
    before = cache._marks_of(str(tmp_path), "plan")
    assert before == [("plan/deep/blocks.py", 5, source.stat().st_mtime_ns)]
    source.write_text("A = 11")
    assert cache._marks_of(str(tmp_path), "plan") != before


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(cache_folder, mode):
    cache_folder.mkdir()
    cache_folder.chmod(mode)
    tiny = tiny_kernel(6)
    run_tiny(tiny, 6)
    assert not tiny.from_disk
    assert not tiny_kernel(6).from_disk
    assert not os.listdir(cache_folder)
    assert f"may be written by others (mode {mode:04o})" in cache.state().refusal


@posix
def test_a_directory_of_another_user_is_refused(cache_folder, monkeypatch):
    cache_folder.mkdir(mode=0o700)
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    assert f"belongs to another user (uid {real})" in cache.state().refusal
    run_tiny(tiny_kernel(6), 6)
    assert not os.listdir(cache_folder)


@posix
def test_a_file_that_others_may_write_to_is_refused(cache_folder):
    tiny_kernel(6)
    (file,) = files(cache_folder)
    file.chmod(0o666)
    assert not tiny_kernel(6).from_disk
    assert tiny_kernel(6).from_disk  # it was written anew, with the right mode


@posix
def test_the_directory_is_private(cache_folder):
    tiny_kernel(6)
    assert cache_folder.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files(cache_folder))


def test_a_directory_that_cannot_be_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    run_tiny(tiny_kernel(6), 6)
    assert "cannot be used" in cache.state().refusal


@posix
@not_root
def test_a_directory_that_cannot_be_written_is_no_failure(cache_folder):
    cache_folder.mkdir(mode=0o500)
    run_tiny(tiny_kernel(6), 6)
    assert "Permission denied" in cache.last_failure()


def test_a_full_disk_is_no_failure(cache_folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    run_tiny(tiny_kernel(6), 6)
    assert "No space left" in cache.last_failure()
    assert not os.listdir(cache_folder)


def test_the_cache_can_be_off(monkeypatch):
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", "off")
    assert not tiny_kernel(6).from_disk
    assert not tiny_kernel(6).from_disk
    assert cache.state().refusal == "switched off by CONVGRAD_CACHE_DIR"
    assert (cache.size(), cache.entries(), cache.clear()) == ((0, 0), [], 0)


def test_the_oldest_entries_make_room(cache_folder):
    for age, name in enumerate(("new", "middle", "old")):
        cache.write(name, cache.Entry(bytes(1000), {}))
        os.utime(cache_folder / (name + cache.SUFFIX), (1e9 - age, 1e9 - age))
    for name, time in ((".writing-crashed", 9e8), (".writing-now", 1e9)):
        (cache_folder / name).write_text("x")
        os.utime(cache_folder / name, (time, time))
    cache._look_after(cache_folder, 4000)
    assert [file.stem for file in files(cache_folder)] == ["middle", "new", "old"]
    assert [name for name in os.listdir(cache_folder) if name.startswith(cache.WRITING)] == [".writing-now"]
    cache._look_after(cache_folder, 2500)
    assert [file.stem for file in files(cache_folder)] == ["middle", "new"]
    cache._look_after(cache_folder / "gone", 0)


def test_few_writes_look_after_the_cache_and_those_ask_for_few_sizes(cache_folder, monkeypatch):
    """With tens of thousands of entries that took as long as to compile several kernels."""
    looks, asked, stat = [], [], os.stat
    monkeypatch.setattr(cache, "_look_after", lambda *given: looks.append(given))
    numbers = iter(range(256))
    monkeypatch.setattr(cache.os, "urandom", lambda size: bytes([next(numbers)] * size))
    for n in range(256):
        cache.write(f"entry {n}", cache.Entry(b"code", {}))
    assert looks == [(str(cache_folder), cache.LIMIT_BYTES)] * (256 // cache.LOOK_EVERY)
    monkeypatch.undo()
    for n in range(1000):
        (cache_folder / f"{n}{cache.SUFFIX}").write_bytes(b"code")
    monkeypatch.setattr(cache.os, "stat", lambda path: asked.append(path) or stat(path))
    cache._look_after(str(cache_folder), 1 << 20)
    assert 0 < len(asked) <= cache.SAMPLE


def test_listing_and_clearing(cache_folder):
    tiny_kernel(6)
    tiny_kernel(7)
    assert [entry["what"] for entry in cache.entries()] == ["tiny 6", "tiny 7"]
    count, size = cache.size()
    assert count == 2
    assert size == sum(entry["bytes"] for entry in cache.entries())
    assert cache.clear() == 2
    assert cache.size() == (0, 0)

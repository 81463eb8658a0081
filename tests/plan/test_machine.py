"""The machine as data: levels, refusals, caches and quotas."""

import pytest

from convgrad.errors import SettingError
from convgrad.plan import host, machine
from convgrad.plan.machine import LEVELS, machine_for

TRIPLES = {
    "portable": "x86_64",
    "avx2": "x86_64",
    "avx512": "x86_64",
    "avx512_bf16_emulated": "x86_64",
    "avx512_bf16": "x86_64",
    "amx_emulated": "x86_64",
    "amx": "x86_64",
    "neon": "aarch64",
}


@pytest.fixture
def forced(monkeypatch):
    """Sets CONVGRAD_ISA."""
    return lambda isa: monkeypatch.setenv("CONVGRAD_ISA", isa)


@pytest.mark.parametrize("isa", LEVELS)
def test_every_level_is_a_target_whatever_the_host(isa):
    target = machine_for(isa, triple=f"{TRIPLES[isa]}-unknown-linux-gnu")
    target.validate()
    assert target.isa == isa
    assert isa in str(target)


def test_without_a_triple_a_level_brings_its_own():
    assert machine_for("neon").triple.startswith(("aarch64", "arm64"))
    assert machine_for("avx2").triple.startswith("x86_64")


def test_a_level_of_another_architecture_is_explained():
    with pytest.raises(SettingError, match="'avx2' belongs to x86_64, but the target is aarch64-unknown-linux-gnu"):
        machine_for("avx2", triple="aarch64-unknown-linux-gnu")


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "riscv64", "s390x"])
def test_portable_is_for_every_architecture(arch):
    machine_for("portable", triple=f"{arch}-unknown-linux-gnu").validate()


def test_a_forced_level_is_used(forced):
    for isa in machine.available_isas():
        forced(isa)
        assert machine.current_machine().isa == isa


def test_the_best_level_is_the_default(monkeypatch):
    monkeypatch.delenv("CONVGRAD_ISA", raising=False)
    assert machine.current_machine().isa == machine.available_isas()[-1]


def test_a_level_above_the_cpu_is_explained(forced, monkeypatch):
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"}))
    monkeypatch.setattr(machine, "host_triple", lambda: "x86_64-unknown-linux-gnu")
    for cached in (machine.why_not, machine.available_isas, machine._current):
        cached.cache_clear()
    forced("avx512")
    try:
        with pytest.raises(SettingError, match=r"CONVGRAD_ISA is 'avx512'.* does not offer .*avx512f.*has portable"):
            machine.current_machine()
    finally:
        for cached in (machine.why_not, machine.available_isas, machine._current):
            cached.cache_clear()


def test_a_level_of_another_machine_is_explained(forced):
    foreign = "neon" if host.host_triple().startswith("x86_64") else "avx2"
    forced(foreign)
    with pytest.raises(SettingError, match=f"CONVGRAD_ISA is '{foreign}'.*belongs to"):
        machine.current_machine()


def test_what_linux_says_is_that_of_the_first_core(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert host._linux_core(str(cpuinfo)) == {"processor": "0", "flags": "fpu avx2 fma"}
    assert host._linux_core(str(tmp_path / "missing")) == {}


@pytest.mark.parametrize(
    ("what", "vendor", "family", "model", "flags", "alone"),
    [
        ("loads_alone", "GenuineIntel", "6", "106", "", True),
        ("loads_alone", "GenuineIntel", "6", "108", "", True),
        ("loads_alone", "GenuineIntel", "6", "143", "", False),
        ("loads_alone", "AuthenticAMD", "26", "106", "", False),
        ("multiplies_alone", "AuthenticAMD", "25", "17", "fma avx2 avx512f avx512bw", True),
        ("multiplies_alone", "AuthenticAMD", "25", "1", "fma avx2", False),
        ("multiplies_alone", "AuthenticAMD", "26", "2", "fma avx2 avx512f avx512bw", False),
        ("multiplies_alone", "GenuineIntel", "6", "143", "fma avx2 avx512f avx512bw", False),
    ],
)
def test_processors_that_do_one_vector_a_cycle_are_known(monkeypatch, what, vendor, family, model, flags, alone):
    core = {"vendor_id": vendor, "cpu family": family, "model": model, "flags": flags}
    known = getattr(host, what)
    monkeypatch.setattr(host.sys, "platform", "linux")
    try:
        for told, expected in ((core, alone), ({}, False)):
            monkeypatch.setattr(host, "_linux_core", lambda _, told=told: told)
            known.cache_clear()
            assert known() == expected
    finally:
        known.cache_clear()


@pytest.mark.parametrize("what", ["loads_alone", "multiplies_alone"])
def test_shorter_vectors_are_not_alone(what):
    made = [machine.machine_for(isa, **{what: True}) for isa in ("avx512", "amx", "avx2")]
    assert [getattr(each, what) for each in made] == [True, True, False]


def test_cache_sizes_fall_into_classes():
    assert host._cache_class({1: 48 << 10, 2: 2 << 20}) == (48 << 10, 2 << 20, 2 << 20)
    assert host._cache_class({1: 32 << 10, 2: 1280 << 10}) == (32 << 10, 1 << 20, 2 << 20)
    assert host._cache_class({}) == (32 << 10, 512 << 10, 2 << 20)
    assert host._cache_class({1: 16 << 10, 2: 64 << 10}) == (32 << 10, 256 << 10, 2 << 20)


def test_caches_that_many_cores_share_are_not_counted(tmp_path):
    known = [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2M"), (3, "Unified", "8M")]
    for index, (level, kind, size) in enumerate(known):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert host._linux_caches(str(tmp_path)) == {1: 48 << 10, 2: 2 << 20}


@pytest.mark.parametrize(
    ("files", "membership", "cores"),
    [
        ({"cpu.max": "max 100000"}, "0::/\n", None),
        ({"cpu.max": "150000 100000"}, "0::/\n", 2),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, "0::/a/b\n", 3),
        ({"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/x\n1:pids:/\n", 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/\n", None),
        ({}, "nonsense\n", None),
    ],
    ids=["no limit", "rounded up", "a parent's", "version 1", "version 1, no limit", "unreadable"],
)
def test_the_quota_of_the_control_group_limits_the_cores(tmp_path, files, membership, cores):
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "cgroup").write_text(membership)
    assert host._cgroup_quota(str(tmp_path / "cgroup"), str(tmp_path / "fs")) == cores

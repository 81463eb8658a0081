"""Environment variables: what they mean, and what a wrong one is told."""

import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import convgrad
from convgrad import settings
from convgrad.errors import ConvError, SettingError
from convgrad.runtime import cache

NAMES = (
    "CONVGRAD_ISA",
    "CONVGRAD_NUM_THREADS",
    "OMP_NUM_THREADS",
    "CONVGRAD_CACHE_DIR",
    "XDG_CACHE_HOME",
    "CONVGRAD_FPMATH_MODE",
)


@pytest.fixture
def env(monkeypatch):
    """Sets variables, after all of ours have been removed."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


def test_nothing_set_gives_the_defaults(env):
    env("HOME", "/home/somebody")
    assert settings.isa() is None
    assert settings.num_threads() is None
    assert settings.fpmath_mode() == "strict"
    assert settings.cache_dir() is not None


@pytest.mark.parametrize("isa", settings.ISAS)
def test_instruction_sets_are_named_in_any_letter_case(env, isa):
    env("CONVGRAD_ISA", f" {isa.upper()} ")
    assert settings.isa() == isa


def test_an_unknown_instruction_set_is_told_the_choice(env):
    env("CONVGRAD_ISA", "sse9")
    with pytest.raises(
        SettingError, match="CONVGRAD_ISA is 'sse9'; it takes one of portable, avx2, avx512, avx512_bf16_emulated, "
    ):
        settings.isa()


def test_an_unknown_mode_is_told_the_choice(env):
    env("CONVGRAD_FPMATH_MODE", "fast")
    with pytest.raises(ConvError, match="CONVGRAD_FPMATH_MODE is 'fast'; it takes one of strict, tf32, bf16, f16, any"):
        settings.fpmath_mode()


def test_our_variable_wins_over_that_of_openmp(env):
    env("OMP_NUM_THREADS", "8")
    env("CONVGRAD_NUM_THREADS", "3")
    assert settings.num_threads() == (3, "CONVGRAD_NUM_THREADS")


def test_openmp_may_list_a_number_per_level(env):
    env("OMP_NUM_THREADS", "4,2,1")
    assert settings.num_threads() == (4, "OMP_NUM_THREADS")


@pytest.mark.parametrize("value", ["0", "many", "-1", "", "9" * 5000])
def test_what_openmp_ignores_is_ignored(env, value):
    env("OMP_NUM_THREADS", value)
    assert settings.num_threads() is None


def test_a_number_of_thousands_of_digits_is_none(env):
    env("CONVGRAD_NUM_THREADS", "9" * 5000)
    with pytest.raises(SettingError, match=r"CONVGRAD_NUM_THREADS is '9{199}\.\.\.; it takes a whole number"):
        settings.num_threads()


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5", "²"])
def test_a_number_of_threads_is_a_whole_number(env, value):
    env("CONVGRAD_NUM_THREADS", value)
    with pytest.raises(SettingError, match=f"CONVGRAD_NUM_THREADS is '{value}'; it takes a whole number"):
        settings.num_threads()


@pytest.mark.parametrize("value", ["off", "OFF", "", "0", "none"])
def test_the_cache_can_be_switched_off(env, value):
    env("CONVGRAD_CACHE_DIR", value)
    assert settings.cache_dir() is None


def test_the_cache_directory_follows_the_variables(env, tmp_path):
    if hasattr(__import__("os"), "uname"):
        env("XDG_CACHE_HOME", str(tmp_path))
        assert settings.cache_dir() == str(tmp_path / "convgrad")
    env("CONVGRAD_CACHE_DIR", str(tmp_path / "mine"))
    assert settings.cache_dir() == str(tmp_path / "mine")


def test_a_relative_directory_of_one_that_is_gone_switches_the_cache_off(env, tmp_path, monkeypatch):
    env("CONVGRAD_CACHE_DIR", "kernels")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    cache._inspect.cache_clear()
    assert cache.state() == (None, "the directory kernels cannot be used: No such file or directory")


def test_other_systems_than_linux_have_directories_of_their_own(monkeypatch):
    library = types.ModuleType("platformdirs")
    library.user_cache_dir = lambda name, appauthor: f"/caches of {appauthor}/{name}"
    monkeypatch.setitem(sys.modules, "platformdirs", library)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delenv("CONVGRAD_CACHE_DIR", raising=False)
    assert settings.cache_dir() == "/caches of False/convgrad"


def test_without_a_home_there_is_no_directory(env, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    env("XDG_CACHE_HOME", "")
    assert settings.cache_dir() is None


def test_a_relative_xdg_directory_is_not_used(env):
    env("HOME", "/home/somebody")
    env("XDG_CACHE_HOME", "relative")
    assert settings.cache_dir().startswith(str(Path("/home/somebody").absolute()))


def test_a_mode_and_an_order_go_in_one_word():
    with settings.ordered("tiles and more"):
        assert settings.mode_and_order(settings.arithmetic(None)) == (None, "tiles and more")
        assert settings.mode_and_order(settings.arithmetic("tf32")) == ("tf32", "tiles and more")
        with settings.ordered(""):
            assert settings.arithmetic("tf32") == "tf32"
    assert settings.arithmetic(None) is None
    assert settings.mode_and_order("bf16") == ("bf16", "")
    assert settings.mode_and_order(5) == (5, "")


def test_a_wrong_mode_is_told_with_an_order_too():
    ones = np.ones((1, 5, 2), np.float32)
    with settings.ordered("whichever"), pytest.raises(ConvError, match="fpmath_mode is 'quick'; it must be one of"):
        convgrad.convolution(ones, np.ones((3, 2, 2), np.float32), fpmath_mode="quick")
    with pytest.raises(ConvError, match="fpmath_mode is 'strict and tiles'"):
        convgrad.convolution(ones, np.ones((3, 2, 2), np.float32), fpmath_mode="strict and tiles")

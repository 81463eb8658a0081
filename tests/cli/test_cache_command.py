import json

import numpy as np
import pytest

import convgrad as library
from convgrad import operations
from convgrad.runtime import cache, kernel
from convgrad.runtime.threads import team


@pytest.fixture
def folder(tmp_path, monkeypatch):
    team.start()  # whose own kernel, if it needs one, lies elsewhere, then
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", str(tmp_path / "kernels"))
    cache._inspect.cache_clear()
    kernel.forget()
    monkeypatch.setattr(operations._bias_add_backward, "records", {})  # which keep kernels of their own
    yield tmp_path / "kernels"
    cache._inspect.cache_clear()


def test_list_size_and_clear(convgrad, folder):
    library.bias_add_backward(np.ones((2, 5), np.float32))
    status, out, err = convgrad("cache", "list")
    assert (status, err) == (0, "")
    assert "solve w" in out
    assert "1 kernel, " in out
    assert json.loads(convgrad("cache", "size", "--json")[1])["kernels"] == 1
    assert convgrad("cache", "clear")[1].startswith("deleted 1 kernel, ")
    assert convgrad("cache", "size")[1].startswith("0 kernels, 0 bytes of at most 256 MiB, in ")
    assert json.loads(convgrad("cache", "list", "--json")[1])["entries"] == []


def test_no_cache_is_no_error(convgrad, monkeypatch):
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", "off")
    status, out, _ = convgrad("cache", "list")
    assert (status, out) == (0, "no cache is in use: switched off by CONVGRAD_CACHE_DIR\n")


def test_an_action_is_needed(convgrad):
    status, _, err = convgrad("cache")
    assert status == 2
    assert err.startswith("convgrad cache: the following arguments are required: action")

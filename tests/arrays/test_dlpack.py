"""Tensors of other libraries through DLPack."""

import ctypes

import numpy as np
import pytest

import convgrad
from convgrad.errors import ArrayError, DtypeError

X = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
W = np.arange(24, dtype=np.float32).reshape(3, 2, 4) % 5
DST = convgrad.convolution(X, W)


class Foreign:
    """An array of a library that knows nothing of NumPy but the protocol."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)


class Old(Foreign):
    """One from before versions came into the protocol."""

    def __dlpack__(self):
        return self.array.__dlpack__()


class Library:
    """The namespace of a library, as the array API standard has it."""

    @staticmethod
    def from_dlpack(array):
        return Foreign(array)


class Named(Foreign):
    def __array_namespace__(self):
        return Library


@pytest.mark.parametrize("kind", [Foreign, Old])
def test_any_library_that_speaks_dlpack_can_give_inputs(kind):
    result = convgrad.convolution(kind(X), kind(W))
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, DST)
    np.testing.assert_array_equal(convgrad.convolution(kind(X[:, ::-1]), W), convgrad.convolution(X[:, ::-1], W))
    np.testing.assert_array_equal(convgrad.convolution(X, kind(W), kind(np.ones(4, np.float32))), DST + 1)


def test_the_result_is_of_the_library_of_the_first_argument_if_that_has_a_name():
    result = convgrad.convolution(Named(X), W)
    assert type(result) is Foreign
    np.testing.assert_array_equal(result.array, DST)


@pytest.mark.parametrize("kind", [Foreign, Old])
def test_results_can_be_written_to_foreign_memory(kind):
    out = kind(np.full(DST.shape, np.nan, np.float32))
    assert convgrad.convolution(X, W, out=out) is out
    np.testing.assert_array_equal(out.array, DST)


def test_a_read_only_export_is_not_written_to():
    locked = X.copy()
    locked.flags.writeable = False
    np.testing.assert_array_equal(convgrad.convolution(Foreign(locked), W), DST)
    zeros = np.zeros(DST.shape, np.float32)
    zeros.flags.writeable = False
    with pytest.raises(ArrayError, match="out is read-only"):
        convgrad.convolution(X, W, out=Foreign(zeros))


def test_foreign_memory_that_is_shared_is_found():
    memory = np.zeros(40, np.float32)
    with pytest.raises(ArrayError, match="out and src share memory"):
        convgrad.convolution(memory[:12].reshape(1, 6, 2), W, out=Foreign(memory[4:20].reshape(1, 4, 4)))


class Broken(Foreign):
    def __dlpack__(self, **keywords):
        raise BufferError("lent to somebody else")


class Nowhere(Foreign):
    def __dlpack_device__(self):
        raise RuntimeError("no storage")


class Other(Foreign):
    def __dlpack__(self, **keywords):
        return ctypes.pythonapi.PyCapsule_New


class Training(Foreign):
    requires_grad = True


MISTAKES = {
    "on a GPU": (Foreign(X, device=(2, 1)), ArrayError, r"src is on the device CUDA:1; copy it to the CPU first"),
    "on another device": (Foreign(X, device=(99, 0)), ArrayError, r"src is on the device DLPack type 99:0"),
    "without storage": (Nowhere(X), ArrayError, r"src does not tell its device: no storage"),
    "on a device in words": (
        Foreign(X, device=("cpu", 0)),
        ArrayError,
        r"src does not tell its device: invalid literal",
    ),
    "not exportable": (Broken(X), ArrayError, r"src cannot be exported through DLPack: lent to somebody else"),
    "no capsule": (Other(X), ArrayError, r"src exports something other than a DLPack tensor"),
    "integers": (Foreign(X.astype(np.int16)), DtypeError, r"src holds integers of 16 bits, but must hold one of f32"),
    "truth values": (Foreign(X > 3), DtypeError, r"src holds bool of 8 bits"),
    "with a gradient": (Training(X), ArrayError, r"src requires a gradient, .*; give src.detach\(\)"),
    "unaligned": (
        Foreign(np.zeros(49, np.uint8)[1:].view(np.float32).reshape(1, 6, 2)),
        ArrayError,
        r"src (is not aligned to its elements of 4 bytes|cannot be exported)",
    ),
}


@pytest.mark.parametrize(("array", "kind", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_foreign_array_that_cannot_be_used_is_explained(array, kind, message):
    with pytest.raises(kind, match="^Convolution: " + message):
        convgrad.convolution(array, W)


def test_a_future_version_of_the_protocol_is_refused():
    from convgrad.arrays.dlpack import _open, _Versioned

    tensor = _Versioned(major=2)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new(ctypes.addressof(tensor), b"dltensor_versioned", None)
    with pytest.raises(ArrayError, match=r"speaks version 2 of DLPack, only 1 is known"):
        _open("Convolution", "src", capsule)

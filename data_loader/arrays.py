"""Sets larger than memory: arrays in .npy files that are read where they lie."""

import mmap
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from utils.errors import ArgumentError

KEPT_BYTES = 64 * 2**20  # of a file's pages, before they are given back


class MemoryMappedArrays(Dataset):
    """Rows of two .npy files, mapped into memory (numpy.lib.format): what is read of them is all that is loaded.

    inputs, targets: paths of arrays (N, …) as np.save writes them. scale, shift: with either, inputs become float32,
    input · scale + shift, so that bytes can lie on the disk; without, they keep their type. Targets that are whole
    numbers become int64. An item is (input, target); a batch is read at once, in the order in which its rows lie.
    Pages that were read are given back to the system after every KEPT_BYTES, so that memory stays as it is.
    A worker opens the files itself: what is sent to it is their paths.
    """

    def __init__(self, inputs, targets, scale=None, shift=None):
        self.paths = {"inputs": Path(inputs).absolute(), "targets": Path(targets).absolute()}
        self.scale, self.shift = scale, shift
        self._open()
        if len(self.inputs) != len(self.targets):
            found = f"{len(self.targets)} rows, and {self.paths['inputs']} has {len(self.inputs)}"
            raise ArgumentError(f"targets: {self.paths['targets']} has {found}; the files don't belong together.")

    def _open(self):
        self.inputs, self.targets = (_mapped(name, path) for name, path in self.paths.items())
        self._read_bytes = 0

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name not in ("inputs", "targets")}

    def __setstate__(self, state):
        vars(self).update(state)
        self._open()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        inputs, targets = self.__getitems__(np.array([index]), None)
        return inputs[0], targets[0]

    def __getitems__(self, indices, seeds):
        """A batch: (B, …) and (B, …). Nothing is drawn."""
        inputs, targets = (torch.from_numpy(_rows(array, indices)) for array in (self.inputs, self.targets))
        self._read_bytes += inputs.nbytes + targets.nbytes
        if self._read_bytes > KEPT_BYTES:
            self._read_bytes = 0
            _give_back(self.inputs)
            _give_back(self.targets)
        if self.scale is not None or self.shift is not None:
            inputs = inputs.to(torch.float32)
            inputs.mul_(1.0 if self.scale is None else self.scale).add_(self.shift or 0.0)
        is_whole = not (targets.is_floating_point() or targets.dtype == torch.bool)
        return inputs, targets.long() if is_whole else targets


def _rows(array, indices):
    """A copy of the rows: read in the order in which they lie, returned in the one that was asked for."""
    order = np.argsort(indices, kind="stable")
    rows = np.empty((len(indices), *array.shape[1:]), array.dtype)
    rows[order] = array[indices[order]]
    return rows


def _give_back(array):
    """Let the system take back the pages of the file that this process has; they are read again when asked for."""
    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        array._mmap.madvise(mmap.MADV_DONTNEED)


def _mapped(name, path):
    """The array of a file, without reading it."""
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(f"{name}: {path}: {error}. A file of np.save is wanted, of numbers.") from error
    if not isinstance(array, np.memmap):
        raise ArgumentError(f"{name}: {path} holds several arrays; np.save one, uncompressed.")
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or not array.dtype.isnative:
        raise ArgumentError(f"{name}: {path} is of type {array.dtype.str}; numbers that torch knows are wanted.")
    if array.ndim == 0 or not array.flags.c_contiguous:
        order = "row by row" if array.flags.c_contiguous else "column by column"
        raise ArgumentError(f"{name}: {path} is of shape {array.shape}, {order}; rows are wanted, row by row.")
    return array

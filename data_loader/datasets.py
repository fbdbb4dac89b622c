"""Data sets."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from utils.errors import ArgumentError


class IdxImages(Dataset):
    """Grey images and labels from a pair of IDX files, the format of MNIST and Fashion-MNIST, kept in memory as uint8.

    data_dir: holds `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or `t10k-…` for train=False, plain or .gz,
    or has them in `MNIST/raw`, where torchvision puts them. mean, std: of pixels scaled to [0, 1]. `classes` are their
    names, the lines of a file `classes.txt` in data_dir; without one, their numbers.
    An item is ((1, H, W) float32 image, int64 label). A batch is read at once and costs a few microseconds an image.
    """

    def __init__(self, data_dir, train=True, mean=0.1307, std=0.3081):
        part = "train" if train else "t10k"
        self.images = torch.from_numpy(read_idx(data_dir, f"{part}-images-idx3-ubyte"))  # (N, H, W) uint8
        self.labels = torch.from_numpy(read_idx(data_dir, f"{part}-labels-idx1-ubyte")).long()  # (N,)
        if self.images.dim() != 3 or self.labels.dim() != 1:
            found = f"{tuple(self.images.shape)} images and {tuple(self.labels.shape)} labels"
            raise ArgumentError(f"data_dir: {data_dir}: {found}; (N, H, W) and (N,) are wanted.")
        if len(self.images) != len(self.labels):
            found = f"{len(self.images)} images but {len(self.labels)} labels"
            raise ArgumentError(f"data_dir: {data_dir}: {found}; the files don't belong together.")
        self.classes = class_names(data_dir, int(self.labels.max()) + 1 if len(self.labels) else 0)
        self.scale, self.shift = 1 / (255 * std), -mean / std

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self._normalised(self.images[index].unsqueeze(0)), self.labels[index]

    def __getitems__(self, indices, seeds):
        """A batch: (B, 1, H, W) and (B,). Nothing is drawn, so the examples' seeds are not needed."""
        rows = torch.from_numpy(indices)
        return self._normalised(self.images[rows].unsqueeze(1)), self.labels[rows]

    def _normalised(self, pixels):
        return pixels.to(torch.float32).mul_(self.scale).add_(self.shift)


def class_names(data_dir, count, first=0):
    """The lines of data_dir/classes.txt, at least `count`; without that file the classes' numbers from `first` on."""
    path = Path(data_dir) / "classes.txt"
    if not path.exists():
        return [str(first + i) for i in range(count)]
    names = path.read_text(encoding="utf-8").splitlines()
    if len(names) < count:
        raise ArgumentError(f"data_dir: {path.absolute()} names {len(names)} classes, and there are {count} in use.")
    return names


class Reconstruction(Dataset):
    """Another set's inputs, each the target of itself, as an autoencoder wants them: an item is (input, input)."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        inputs = self.dataset[index][0]
        return inputs, inputs


def read_idx(data_dir, name):
    """The array in an IDX file of unsigned bytes (yann.lecun.com/exdb/mnist: magic, sizes, values), writable."""
    places = [Path(data_dir), Path(data_dir) / "MNIST" / "raw"]
    candidates = [place / (name + ending) for place in places for ending in (".gz", "")]
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        raise ArgumentError(
            f"data_dir: {Path(data_dir).absolute()} holds no {name} or {name}.gz.\n"
            "The digits that come with the project are in data/mnist10k; download=true gets the full MNIST."
        )
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            content = file.read()
        zero, kind, dimensions = struct.unpack_from(">HBB", content)
        sizes = struct.unpack_from(f">{dimensions}I", content, 4)
        if zero != 0 or kind != 8:
            raise ValueError("it begins with other bytes")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(sizes).copy()
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise ArgumentError(
            f"data_dir: {path.absolute()}: not an IDX file of unsigned bytes, or damaged: {error}. Get it again."
        ) from error

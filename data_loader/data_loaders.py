"""Loaders. A config names one as `data_loader`."""

from base import BaseDataLoader
from data_loader.datasets import IdxImages
from utils import imports
from utils.errors import ArgumentError, first_line


class MnistDataLoader(BaseDataLoader):
    """Handwritten digits: (B, 1, 28, 28) float32, normalised, and (B,) int64.

    data_dir: a folder with MNIST's four IDX files. training: the training part, else the test part. download: get the
    full set into data_dir with torchvision if it is not there.
    """

    num_classes = 10

    def __init__(
        self,
        data_dir,
        batch_size,
        shuffle=True,
        validation_split=0.0,
        num_workers=0,
        training=True,
        download=False,
        **dataloader_kwargs,
    ):
        if download:
            _download_mnist(data_dir)
        dataset = IdxImages(data_dir, train=training)
        super().__init__(dataset, batch_size, shuffle, validation_split, num_workers, **dataloader_kwargs)


class DataLoader(BaseDataLoader):
    """Any Dataset by config: {"dataset": {"type", "args"}, …} and every argument of torch.utils.data.DataLoader."""


def _download_mnist(folder):
    MNIST = imports.optional("torchvision.datasets", "data_loader.args.download", "torchvision").MNIST
    try:
        MNIST(folder, train=True, download=True)
    except (OSError, RuntimeError) as error:
        reason = first_line(error)
        raise ArgumentError(
            f"download: the full MNIST can't be had: {reason}\n"
            "Is there a network? Without one, train on the 10,000 digits that come with the project: "
            "data_loader.args.data_dir=data/mnist10k data_loader.args.download=false"
        ) from error

"""Loaders. A config names one as `data_loader`."""

from base import BaseDataLoader
from data_loader.datasets import IdxImages
from utils import imports
from utils.errors import ArgumentError, ConfigError, first_line, shown


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
    """Any Dataset by config: {"dataset": {"type", "args"}, …} and every argument of torch.utils.data.DataLoader.

    sampler: one of torch's, or one of data_loader.samplers, which is told the set and the rows that are trained on.
    Where the set names its `classes`, as torchvision's do, the loader has `class_names` and `num_classes`; a
    checkpoint keeps the names, and a set in which one of them has another number is refused.
    """

    def __init__(self, dataset, *args, **kwargs):
        super().__init__(dataset, *args, **kwargs)
        if isinstance(getattr(dataset, "classes", None), (list, tuple)):
            self._name_classes(dataset.classes)

    def _name_classes(self, names):
        self.class_names, self.num_classes = list(names), len(names)

    def state_dict(self):
        """The names of the classes, in the order of their numbers; nothing for a set that names none."""
        return {"class_names": self.class_names} if hasattr(self, "class_names") else {}

    def load_state_dict(self, state):
        """Take the names that were trained on; ConfigError where one of them has another number in this set."""
        trained, here = state.get("class_names"), getattr(self, "class_names", [])
        if trained is None:
            return
        if here != trained[: len(here)]:
            way = "Name its folders, or the lines of its classes.txt, alike; an absent one shifts those behind it."
            raise ConfigError(f"The classes of this set are {shown(here)}; {shown(trained)} were trained on.\n{way}")
        self._name_classes(trained)


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

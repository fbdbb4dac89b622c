"""IDX files, and the digits that come with the project."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from data_loader.data_loaders import DataLoader, MnistDataLoader
from data_loader.datasets import IdxImages, read_idx
from utils.errors import ConfigError

DIGITS = Path(__file__).resolve().parents[2] / "data" / "mnist10k"

# Two images of 2×3 pixels and their labels, byte by byte as the format's description has them.
IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(6), *range(250, 256)])
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 1])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(IMAGES)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS)
    return tmp_path


def test_an_idx_file_is_read_as_its_bytes_say(folder):
    images = read_idx(folder, "train-images-idx3-ubyte")
    assert images.dtype == np.uint8
    assert images.tolist() == [[[0, 1, 2], [3, 4, 5]], [[250, 251, 252], [253, 254, 255]]]
    assert read_idx(folder, "train-labels-idx1-ubyte").tolist() == [7, 1]


def test_a_packed_idx_file_is_read_alike(folder):
    (folder / "packed-idx1-ubyte.gz").write_bytes(gzip.compress(LABELS))
    assert read_idx(folder, "packed-idx1-ubyte").tolist() == [7, 1]


def test_files_are_found_where_torchvision_puts_them(folder):
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "t10k-labels-idx1-ubyte").write_bytes(LABELS)
    assert read_idx(folder, "t10k-labels-idx1-ubyte").tolist() == [7, 1]


def test_a_missing_file_is_named_with_what_to_do(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^data_dir: .* holds no train-images-idx3-ubyte .*\n?.*data/mnist10k.*download"
    ):
        IdxImages(tmp_path)


@pytest.mark.parametrize("start", [b"\x00\x00\x0d\x03", b"PK\x03\x04"], ids=["floats", "a zip"])
def test_a_file_that_is_no_idx_file_of_bytes_is_a_config_error(folder, start):
    (folder / "train-images-idx3-ubyte").write_bytes(start + IMAGES[4:])
    with pytest.raises(ConfigError, match=r"^data_dir: .*train-images-idx3-ubyte: not an IDX file"):
        IdxImages(folder)


@pytest.mark.parametrize("length", [0, 3, 10, len(IMAGES) - 1])
def test_a_file_that_was_cut_short_is_a_config_error(folder, length):
    (folder / "train-images-idx3-ubyte").write_bytes(IMAGES[:length])
    with pytest.raises(ConfigError, match=r"^data_dir: .*train-images-idx3-ubyte: "):
        IdxImages(folder)


def test_images_and_labels_that_do_not_belong_together_are_a_config_error(folder):
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, 3) + b"\1\2\3")
    with pytest.raises(ConfigError, match=r"^data_dir: .*2 images but 3 labels"):
        IdxImages(folder)


def test_an_item_is_a_normalised_image_and_its_label(folder):
    image, label = IdxImages(folder, mean=0.5, std=0.25)[1]
    expected = (torch.tensor([[[250.0, 251, 252], [253, 254, 255]]]) / 255 - 0.5) / 0.25
    torch.testing.assert_close(image, expected)
    assert label.item() == 1 and label.dtype == torch.int64


def test_a_batch_read_at_once_holds_the_same_as_item_by_item(folder):
    dataset = IdxImages(folder)
    images, labels = dataset.__getitems__(np.array([1, 0, 1]), None)
    assert torch.equal(images, torch.stack([dataset[i][0] for i in (1, 0, 1)]))
    assert labels.tolist() == [1, 7, 1]


def test_reading_a_batch_leaves_the_kept_images_as_they_were(folder):
    dataset = IdxImages(folder)
    first = dataset[1][0].clone()
    dataset.__getitems__(np.array([0, 1]), None)
    assert torch.equal(dataset[1][0], first)


# --- the digits that come with the project ---


@pytest.mark.parametrize(("training", "size"), [(True, 8000), (False, 2000)], ids=["training", "test"])
def test_the_shipped_digits_are_as_many_as_their_description_says(training, size):
    dataset = IdxImages(DIGITS, train=training)
    assert dataset.images.shape == (size, 28, 28) and dataset.labels.shape == (size,)


def test_every_shipped_class_has_the_same_share_of_both_parts():
    training, test = (torch.bincount(IdxImages(DIGITS, train=train).labels) for train in (True, False))
    assert len(training) == len(test) == 10
    torch.testing.assert_close(training / 8000, test / 2000, rtol=0, atol=1 / 2000)


def test_no_shipped_test_image_is_among_the_training_images():
    training, test = (
        {image.numpy().tobytes() for image in IdxImages(DIGITS, train=train).images} for train in (True, False)
    )
    assert not training & test


def test_mnist_batches_have_the_shape_that_the_model_takes():
    images, labels = next(iter(MnistDataLoader(DIGITS, 16)))
    assert images.shape == (16, 1, 28, 28) and images.dtype == torch.float32
    assert labels.shape == (16,) and labels.dtype == torch.int64


def test_the_test_part_is_other_data_than_the_training_part():
    loader = MnistDataLoader(DIGITS, 16, training=False)
    assert loader.n_samples != MnistDataLoader(DIGITS, 16).n_samples


def test_a_download_without_a_network_is_a_config_error_that_names_the_shipped_digits(tmp_path, monkeypatch):
    import torchvision

    def no_network(*args, **kwargs):
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    monkeypatch.setattr(torchvision.datasets, "MNIST", no_network)
    with pytest.raises(ConfigError, match=r"^download: the full MNIST can't be had(.|\n)*data/mnist10k"):
        MnistDataLoader(tmp_path, 16, download=True)


def test_any_dataset_is_loaded_by_the_general_loader():
    dataset = torch.utils.data.TensorDataset(torch.arange(5))
    assert [batch.tolist() for (batch,) in DataLoader(dataset, 2, drop_last=True)] == [[0, 1], [2, 3]]

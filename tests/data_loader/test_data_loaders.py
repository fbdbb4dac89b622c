"""DataLoader: any set by config, and the names of its classes."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from data_loader.data_loaders import DataLoader
from data_loader.datasets import IdxImages
from utils.errors import ConfigError


def named(*names):
    dataset = TensorDataset(torch.arange(6))
    dataset.classes = list(names)
    return DataLoader(dataset, 2)


def write_idx(folder, labels):
    sizes = len(labels).to_bytes(4, "big")
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + sizes + bytes(labels))
    head = bytes([0, 0, 8, 3]) + sizes + bytes([0, 0, 0, 1] * 2)
    (folder / "train-images-idx3-ubyte").write_bytes(head + bytes(labels))
    return folder


def test_a_loader_has_the_names_of_its_sets_classes():
    loader = named("cat", "dog")
    assert loader.class_names == ["cat", "dog"] and loader.num_classes == 2
    assert loader.state_dict() == {"class_names": ["cat", "dog"]}


@pytest.mark.parametrize("classes", [None, 3], ids=["no classes", "a number of them"])
def test_a_set_without_names_of_classes_has_nothing_to_keep(classes):
    dataset = TensorDataset(torch.arange(6))
    if classes:
        dataset.classes = classes
    loader = DataLoader(dataset, 2)
    assert loader.state_dict() == {} and not hasattr(loader, "num_classes")
    loader.load_state_dict({"class_names": ["cat", "dog"]})
    assert loader.num_classes == 2


@pytest.mark.parametrize("here", [["cat"], ["cat", "dog"]])
def test_a_set_of_the_first_classes_takes_the_names_that_were_trained_on(here):
    loader = named(*here)
    loader.load_state_dict({"class_names": ["cat", "dog"]})
    assert loader.class_names == ["cat", "dog"] and loader.num_classes == 2


@pytest.mark.parametrize("here", [["dog"], ["dog", "cat"], ["cat", "dog", "eel"]])
def test_a_set_in_which_a_class_has_another_number_is_refused(here):
    with pytest.raises(ConfigError, match=r"The classes of this set are .*; .* were trained on"):
        named(*here).load_state_dict({"class_names": ["cat", "dog"]})


def test_idx_images_have_the_names_of_a_file_beside_them(tmp_path):
    write_idx(tmp_path, [0, 2, 1])
    assert IdxImages(tmp_path).classes == ["0", "1", "2"]
    (tmp_path / "classes.txt").write_text("shirt\nbag\nshoe\nhat\n")
    assert IdxImages(tmp_path).classes == ["shirt", "bag", "shoe", "hat"]
    (tmp_path / "classes.txt").write_text("shirt\nbag\n")
    with pytest.raises(ConfigError, match=r"^data_dir: .*classes\.txt names 2 classes, and there are 3 in use"):
        IdxImages(tmp_path)


def test_a_sampler_of_torchs_own_is_left_to_torch():
    dataset = TensorDataset(torch.arange(6))
    sampler = torch.utils.data.WeightedRandomSampler(np.eye(6)[4].tolist(), 5)
    assert [batch.tolist() for (batch,) in DataLoader(dataset, 3, sampler=sampler)] == [[4, 4, 4], [4, 4]]
    with pytest.raises(ConfigError, match=r"^validation_split: .*a sampler of its own"):
        DataLoader(dataset, 3, validation_split=0.5, sampler=sampler)

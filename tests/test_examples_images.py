"""The worked examples of configs/ on images and tables train, are evaluated, and read what their data say."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lab import differences_of_checkpoints, load

from data_loader.datasets import IdxImages
from data_loader.tables import Table
from parse_config import ConfigParser
from trainer import build
from utils import config_file

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ("emoji", "fashion", "titanic")


def loaders_of(name, **args):
    """(training loader, validation loader) of an example, with some arguments of its own."""
    config = ConfigParser(config_file.resolve(ROOT / "configs" / f"{name}.json")[0])
    config["data_loader"]["args"] |= args
    config.check()
    training = build.training(config)
    return training, build.validation(config, training)


@pytest.fixture
def at_root(monkeypatch):
    """Paths in a config are relative to the project's folder."""
    monkeypatch.chdir(ROOT)


def pixels(part):
    """(N, 32, 32, 3) in [0, 1] of the emoji folder, in the order of its names; and (N,) class numbers."""
    from PIL import Image

    folders = sorted((ROOT / "data" / "emoji32" / part).iterdir())
    files = [(path, i) for i, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    images = []
    for path, _ in files:
        with Image.open(path) as image:
            images.append(np.asarray(image.convert("RGB")))
    return np.stack(images) / 255, np.array([i for _, i in files])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_and_is_evaluated(name, lab):
    words = ["trainer.epochs=1", "trainer.len_epoch=2", f"trainer.save_dir={lab.saved}", "trainer.tensorboard=false"]
    done = lab.train(ROOT / "configs" / f"{name}.json", *words)
    assert done.code == 0, done.err
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= done.numbers.keys()
    tested = lab.test(lab.run / "latest.pth")
    assert tested.code == 0, tested.err
    assert tested.numbers.keys() == {"test_loss", "test_accuracy"}


def test_a_resumed_run_on_a_table_ends_like_an_unbroken_one(lab):
    words = ["lr_scheduler=null", f"trainer.save_dir={lab.saved}", "trainer.tensorboard=false"]
    for run_id, epochs in (("whole", 2), ("broken", 1)):
        done = lab.train(ROOT / "configs" / "titanic.json", *words, f"trainer.epochs={epochs}", "--run-id", run_id)
        assert done.code == 0, done.err
    whole, broken = (lab.saved / "titanic" / run_id / "latest.pth" for run_id in ("whole", "broken"))
    assert lab.resume(broken, "trainer.epochs=2").code == 0
    assert differences_of_checkpoints(whole, broken) == []
    assert load(whole)["data"]["categorical"] == {"pclass": ["1", "2", "3"], "sex": ["female", "male"]}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_examples_batches_are_the_same_for_any_number_of_workers(name, at_root):
    for one, other in zip(loaders_of(name, num_workers=0), loaders_of(name, num_workers=2)):
        for (inputs, target), (others, others_target) in zip(one.first_batches(3), other.first_batches(3)):
            assert torch.equal(inputs, others) and torch.equal(target, others_target)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_examples_validation_rows_have_the_classes_shares(name, at_root):
    training, validation = loaders_of(name)
    dataset = training.dataset
    labels = np.asarray(dataset.targets if hasattr(dataset, "targets") else dataset.labels)
    counts = np.bincount(labels[list(training.valid_sampler)])
    share = validation.n_samples / len(labels)
    assert (abs(counts - share * np.bincount(labels)) <= 1).all()
    assert set(training.training_indices().tolist()).isdisjoint(training.valid_sampler)


def test_fashions_images_are_standardised_by_the_training_files(at_root):
    content = gzip.decompress((ROOT / "data" / "fashion-mnist" / "train-images-idx3-ubyte.gz").read_bytes())
    scaled = np.frombuffer(content, np.uint8, offset=16) / 255
    text = json.loads((ROOT / "configs" / "fashion.json").read_text())
    for section in ("data_loader", "test_data_loader"):
        args = text[section]["args"]["dataset"]["args"]
        assert args["mean"] == round(scaled.mean(), 4) and args["std"] == round(scaled.std(), 4)


def test_fashions_classes_have_their_names(at_root):
    training, _ = loaders_of("fashion")
    assert (
        training.num_classes == 10
        and training.class_names[0] == "T-shirt/top"
        and training.class_names[9] == "Ankle boot"
    )


def test_emojis_are_standardised_by_the_training_folder(at_root):
    images, _ = pixels("train")
    text = json.loads((ROOT / "configs" / "emoji.json").read_text())
    transforms = [text["data_loader"]["args"][f"{name}_transform"] for name in ("train", "eval")]
    transforms.append(text["test_data_loader"]["args"]["eval_transform"])
    for transform in transforms:
        args = transform["args"]["transforms"][-1]["args"]
        np.testing.assert_allclose(args["mean"], images.mean(axis=(0, 1, 2)), rtol=0, atol=5.1e-5)
        np.testing.assert_allclose(args["std"], images.std(axis=(0, 1, 2)), rtol=0, atol=5.1e-5)


def test_emojis_to_validate_on_are_standardised_and_otherwise_as_they_are(at_root):
    training, validation = loaders_of("emoji")
    images, classes = pixels("train")
    text = json.loads((ROOT / "configs" / "emoji.json").read_text())
    known = text["data_loader"]["args"]["eval_transform"]["args"]["transforms"][-1]["args"]
    rows = training.valid_sampler
    expected = torch.from_numpy((images[rows] - known["mean"]) / known["std"]).permute(0, 3, 1, 2).float()
    read, target = (torch.cat(column) for column in zip(*validation))
    torch.testing.assert_close(read, expected, rtol=1e-4, atol=1e-5)
    assert target.tolist() == classes[rows].tolist()


def test_emojis_to_train_on_are_changed_anew_in_every_epoch(at_root):
    same_rows = loaders_of("emoji")[0].first_batches(1)
    (first, target), (second, again) = (next(same_rows.batches_of(epoch)) for epoch in (1, 2))
    assert torch.equal(target, again) and not torch.equal(first, second)


def test_emojis_classes_are_drawn_equally_often(at_root):
    training, _ = loaders_of("emoji")
    drawn = [training.dataset.targets[i] for batch in training.batch_sampler for i in batch]
    counts = np.bincount(drawn, minlength=9)
    assert counts.max() - counts.min() <= 1 and len(drawn) == training.n_samples
    assert training.class_names[0] == "Activities" and training.num_classes == 9


# --- the data are as data/README.md says ---


def test_no_test_image_of_fashion_is_among_its_training_images():
    folder = ROOT / "data" / "fashion-mnist"
    training, test = (IdxImages(folder, train=train).images for train in (True, False))
    assert (len(training), len(test)) == (10_000, 2_000)
    assert not {image.numpy().tobytes() for image in training} & {image.numpy().tobytes() for image in test}


def test_as_many_test_emojis_have_their_like_in_training_as_is_said():
    (training, _), (test, _) = pixels("train"), pixels("test")
    assert (len(training), len(test)) == (1534, 372)
    seen = {image.tobytes() for image in training}
    assert sum(image.tobytes() in seen for image in test) == 6


def test_the_passengers_are_as_many_as_is_said():
    table = Table(ROOT / "data" / "titanic" / "titanic.csv", "survived", ["age"])
    assert len(table) == 1309 and (table.names == "1").sum() == 500 and np.isnan(table.numbers["age"]).sum() == 263

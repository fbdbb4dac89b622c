"""What a checkpoint's own config may name, judged by where an object is defined."""

import functools
import inspect
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch.nn.functional as F

from base import BaseDataLoader
from utils import objects, write_json
from utils.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[2]
HOME = types.ModuleType("home")  # a section's module that holds nothing


def find(name, home=HOME, folders=(ROOT,)):
    """What a checkpoint's config gets for `name`."""
    return objects.locate(name, home, "arch.type", functools.partial(objects.refuse_stranger, "arch", folders))


@pytest.mark.parametrize(
    "name",
    [
        "torch.nn.Linear",
        "torch.nn.CrossEntropyLoss",
        "torch.nn.functional.relu",
        "torch.nn.functional.cross_entropy",
        "torch.nn.functional.linear",
        "torch.nn.functional.conv2d",
        "torch.nn.functional.cosine_similarity",
        "torch.nn.utils.parametrizations.weight_norm",
        "torch.optim.AdamW",
        "torch.optim.lr_scheduler.StepLR",
        "torch.optim.swa_utils.SWALR",
        "torch.utils.data.TensorDataset",
        "torch.utils.data.RandomSampler",
        "torch.utils.data.default_convert",
        "torch.Generator",
        "torchvision.models.resnet18",
        "torchvision.transforms.Normalize",
        "torchvision.datasets.FakeData",
        "model.model.MnistModel",
        "model.metric.accuracy",
        "data_loader.data_loaders.MnistDataLoader",
        "trainer.trainer.Trainer",
    ],
)
def test_a_checkpoint_may_name(name):
    assert callable(find(name))


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "subprocess.run",
        "builtins.eval",
        "builtins.exec",
        "builtins.getattr",
        "functools.partial",
        "pickle.loads",
        "torch.load",
        "torch.hub.load",
        "torch.save",
        "torch.from_file",
        "torch.utils.model_zoo.load_url",
        "torch.utils.cpp_extension.load",
        "torch.utils.data.random_split",
        "torch.utils.data.datapipes.iter.FileOpener",
        "torch.utils.data.datapipes.iter.Mapper",
        "torch.distributed.init_process_group",
        "torchvision.datasets.utils.download_url",
        "torchvision.io.write_file",
        "numpy.load",
        "numpy.fromfile",
        "utils.write_json",
        "utils.checkpoint.save",
        "utils.checkpoint.Writer",
        "base.BaseDataLoader",
        "base.base_trainer.BaseTrainer",
        "logger.open_log",
        "parse_config.ConfigParser",
        "train.main",
        "test.main",
        "docs.picture.main",
        "extras.dry_run.show",
        "extras.doctor.Examiner",
    ],
)
def test_a_checkpoint_may_not_name(name):
    with pytest.raises(CheckpointError, match="may not run"):
        find(name)


@pytest.mark.parametrize(
    "detour",
    [
        "own_nets.gzip.open",
        "own_nets.np.load",
        "own_nets.torch.load",
        "own_nets.torch.hub.load",
        "own_nets.torch.serialization.os.system",
        "own_nets.nn.modules.module.torch.hub.load",
        "own_nets.BaseDataLoader",
        "own_nets.write_json",
        "torch.nn.modules.module.functools.partial",
        "torch.nn.modules.module.torch.load",
        "torch.optim.optimizer.torch.load",
        "torchvision.datasets.mnist.download_and_extract_archive",
    ],
)
def test_a_path_through_a_harmless_module_reaches_no_harmful_function(own_folder, detour):
    (own_folder / "own_nets.py").write_text(
        "import gzip\nimport numpy as np\nimport torch\nfrom torch import nn\n"
        "from base import BaseDataLoader\nfrom utils import write_json\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    assert find("own_nets.Net", folders=[ROOT, own_folder]).__name__ == "Net"
    with pytest.raises(CheckpointError, match="may not run"):
        find(detour, folders=[ROOT, own_folder])


@pytest.mark.parametrize(
    "detour",
    [
        "model.model.MnistModel.forward.__globals__.get",
        "torch.nn.Module.forward.__globals__.get",
        "torch.nn.Module.__class__.__subclasses__",
        "torch.nn.Module.__class__",
        "torch.nn.Module.__init__",
    ],
)
def test_a_path_goes_through_no_name_of_pythons_own(detour):
    with pytest.raises(CheckpointError, match=f"names '{detour}'"):
        find(detour)


@pytest.mark.parametrize("imported", [subprocess.run, json.loads, write_json, BaseDataLoader])
def test_a_bare_name_that_a_sections_module_has_imported_is_judged_by_where_it_is_defined(imported):
    home = types.ModuleType("model.model")
    home.imported = imported
    with pytest.raises(CheckpointError):
        find("imported", home)


def test_every_built_in_function_of_torch_nn_functional_may_be_named():
    built_in = [name for name, value in vars(F).items() if inspect.isbuiltin(value) and not name.startswith("_")]
    refused = []
    for name in built_in:
        try:
            find(f"torch.nn.functional.{name}")
        except CheckpointError:
            refused.append(name)
    assert len(built_in) > 20 and refused == []


# --- the user's own files ---


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A user's folder on the import path; what it holds is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_class_in_a_file_of_the_users_folder_may_be_named(own_folder):
    (own_folder / "own_sets.py").write_text("class Digits:\n    pass\n")
    assert find("own_sets.Digits", folders=[own_folder]).__name__ == "Digits"


def test_a_class_in_a_file_of_another_folder_may_not_be_named(own_folder, tmp_path_factory):
    (own_folder / "foreign_sets.py").write_text("class Digits:\n    pass\n")
    with pytest.raises(CheckpointError):
        find("foreign_sets.Digits", folders=[tmp_path_factory.mktemp("users")])


@pytest.mark.parametrize("name", ["own_tools.system", "own_tools.run_it", "own_tools.os.system"])
def test_a_function_that_the_users_file_imported_may_not_be_named(own_folder, name):
    (own_folder / "own_tools.py").write_text("import os\nfrom os import system\nfrom subprocess import run as run_it\n")
    with pytest.raises(CheckpointError):
        find(name, folders=[own_folder])


def test_an_installed_package_inside_the_users_folder_is_not_the_users_own(own_folder, monkeypatch):
    packages = own_folder / "venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "installed_thing.py").write_text("def act():\n    pass\n")
    monkeypatch.syspath_prepend(packages)
    with pytest.raises(CheckpointError):
        find("installed_thing.act", folders=[own_folder])


def test_an_installed_module_class_may_be_named_but_not_its_functions(own_folder, tmp_path_factory):
    (own_folder / "installed_nets.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    pass\ndef act():\n    pass\n"
    )
    elsewhere = [tmp_path_factory.mktemp("users")]
    assert find("installed_nets.Net", folders=elsewhere).__name__ == "Net"
    with pytest.raises(CheckpointError):
        find("installed_nets.act", folders=elsewhere)


@pytest.mark.parametrize("name", ["antigravity.geohash", "this.s", "idlelib.run.main"])
def test_a_refused_module_of_python_is_not_even_imported(name):
    with pytest.raises(CheckpointError):
        find(name)
    assert name.partition(".")[0] not in sys.modules

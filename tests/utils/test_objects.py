"""From a name in a config to the object, and what is said where there is none."""

import functools
import sys
import types

import pytest
import torch

from utils import objects
from utils.errors import CheckpointError, ConfigError


def loss(output, target, weight=1.0):
    return output * weight - target


class Net:
    def __init__(self, classes, dropout=0.5):
        self.classes, self.dropout = classes, dropout


class Loader:
    def __init__(self, folder, **others):
        self.folder, self.others = folder, others


HOME = sys.modules[__name__]


def message(act, *args, **kwargs):
    with pytest.raises(ConfigError) as caught:
        act(*args, **kwargs)
    return str(caught.value)


# --- names ---


def test_a_bare_name_is_looked_for_in_its_sections_module():
    assert objects.locate("Net", HOME, "arch.type") is Net


def test_a_sections_module_may_be_given_by_its_dotted_path():
    assert objects.locate("AdamW", "torch.optim", "optimizer.type") is torch.optim.AdamW


def test_a_dotted_path_reaches_any_importable_module():
    assert objects.locate("collections.OrderedDict", HOME, "x").__name__ == "OrderedDict"


def test_a_dotted_path_reaches_into_a_class():
    assert (
        objects.locate("collections.OrderedDict.fromkeys", HOME, "x") == __import__("collections").OrderedDict.fromkeys
    )


def test_a_misspelt_name_is_answered_with_the_nearest_and_its_place():
    said = message(objects.locate, "AdamWW", "torch.optim", "config.json: optimizer.type")
    assert said.startswith("config.json: optimizer.type: no 'AdamWW' in torch.optim. Did you mean 'AdamW'?")


def test_a_missing_module_is_named():
    assert "arch.type: there is no module 'torchvison'" in message(
        objects.locate, "torchvison.models.resnet18", HOME, "arch.type"
    )


def test_a_missing_attribute_of_a_module_is_named_with_the_nearest():
    said = message(objects.locate, "torch.nn.Lineer", HOME, "arch.type")
    assert said == "arch.type: no 'Lineer' in 'torch.nn'. Did you mean 'Linear'?"


def test_a_module_that_needs_a_missing_package_says_which(tmp_path, monkeypatch):
    (tmp_path / "wants_a_package.py").write_text("import package_that_is_nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = message(objects.locate, "wants_a_package.Net", HOME, "arch.type")
    assert "'wants_a_package' needs the module 'package_that_is_nowhere'" in said


def test_a_module_that_raises_while_it_is_imported_is_a_config_error(tmp_path, monkeypatch):
    (tmp_path / "raises_at_once.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = message(objects.locate, "raises_at_once.Net", HOME, "arch.type")
    assert "importing 'raises_at_once' raised ZeroDivisionError" in said


@pytest.mark.parametrize("name", ["torch.nn", "torch.pi"])
def test_what_is_neither_class_nor_function_is_refused(name):
    assert "a class or a function is wanted" in message(objects.locate, name, HOME, "arch.type")


def test_a_judge_sees_every_module_before_it_is_imported():
    seen = []

    def judge(found, path):
        seen.append((found, path))
        if path == "antigravity":
            raise CheckpointError("refused")

    with pytest.raises(CheckpointError):
        objects.locate("antigravity.geohash", HOME, "arch.type", judge)
    assert seen == [(None, "antigravity")] and "antigravity" not in sys.modules


# --- arguments ---


def test_an_unknown_argument_is_named_with_its_place_the_nearest_and_what_is_accepted():
    said = message(objects.make, Net, (), {"classes": 10, "dropuot": 0.1}, "config.json: arch")
    assert said.startswith("config.json: arch.args.dropuot: Net") and "unexpected keyword argument 'dropuot'" in said
    assert said.endswith("Did you mean 'dropout'? It accepts classes, dropout.")


def test_a_missing_argument_is_named_with_what_is_accepted():
    said = message(objects.make, Net, (), {}, "config.json: arch")
    assert said.startswith("config.json: arch.args: Net") and "missing a required argument: 'classes'" in said
    assert said.endswith("It accepts classes, dropout.")


def test_a_missing_argument_is_not_blamed_on_one_that_is_passed_on():
    said = message(objects.make, Loader, (), {"drop_last": True}, "data_loader")
    assert said.startswith("data_loader.args: Loader") and "missing a required argument: 'folder'" in said


def test_an_argument_that_the_code_gives_is_not_among_the_accepted():
    said = message(objects.make, Net, (10,), {"depth": 3}, "arch")
    assert said.endswith("It accepts dropout.")


def test_a_class_is_constructed_with_its_arguments():
    assert objects.make(Net, (), {"classes": 3}, "arch").classes == 3


def test_a_function_is_bound_to_its_arguments_where_it_is_wanted_itself():
    made = objects.make(loss, (), {"weight": 2.0}, "loss", call=False)
    assert isinstance(made, functools.partial) and made(3.0, 1.0) == 5.0


def test_a_function_without_arguments_stays_itself():
    assert objects.make(loss, (), {}, "loss", call=False) is loss


def test_an_unknown_argument_of_a_bound_function_is_found_before_it_is_called():
    said = message(objects.make, loss, (), {"wieght": 2.0}, "loss", call=False)
    assert said.startswith("loss.args.wieght: loss") and "Did you mean 'weight'?" in said


def test_what_a_constructor_raises_is_told_with_its_place():
    said = message(objects.make, torch.nn.Dropout, (), {"p": 7}, "config.json: arch")
    assert said.startswith("config.json: arch: building Dropout raised ValueError: dropout probability")


def test_a_constructors_own_config_error_is_passed_on_as_it_is():
    def build():
        raise ConfigError("data_loader.args.folder: nothing there")

    assert message(objects.make, build, (), {}, "data_loader") == "data_loader.args.folder: nothing there"


# --- a checkpoint's config ---


def test_a_refused_name_says_how_to_give_the_config_oneself():
    judge = objects.refuse_strangers("latest.pth: loss", [])
    with pytest.raises(CheckpointError, match=r"^latest.pth: loss: .*names 'os.*\n.*-c FILE.*--trust"):
        objects.locate("os.system", types.ModuleType("home"), "loss.type", judge)

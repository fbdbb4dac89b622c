"""From a name in a config to the object, and what is said where there is none."""

import functools
import inspect
import sys
import types

import pytest
import torch

from extras import arguments
from utils import objects
from utils.errors import ArgumentError, CheckpointError, ConfigError


def loss(output, target, weight=1.0):
    return output * weight - target


class Net:
    def __init__(self, classes, dropout=0.5):
        self.classes, self.dropout = classes, dropout


class Loader:
    def __init__(self, folder, shuffle=False, **others):
        self.folder, self.shuffle, self.others = folder, shuffle, others


class Images(Loader):
    """Passes on what it does not know, and takes one argument that its signature does not have."""

    def __init__(self, size=28, **others):
        self.mean = others.pop("shuffel", None)
        super().__init__(**others)


class Fixed(Loader):
    """Takes none of its base's arguments."""

    def __init__(self, size=28):
        super().__init__("here")
        self.size = size


class Switches:
    def __init__(self, fused=False, foreach=None, mode="off"):
        self.given = fused, foreach, mode


class Picky:
    """Refuses an argument as the project's own constructors do."""

    def __init__(self, split=0.0):
        raise ArgumentError(f"split: {split} leaves nothing.")


class Pair:
    def __init__(self, first=None, second=None):
        self.first, self.second = first, second


HOME = sys.modules[__name__]


def place(path):
    return f"config.json: {path}"


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
    said = message(objects.locate, "torchvison.models.resnet18", HOME, "arch.type")
    assert said.startswith("arch.type: ") and "no module 'torchvison'" in said and "pip install torchvison" in said


def test_a_missing_attribute_of_a_module_is_named_with_the_nearest():
    said = message(objects.locate, "torch.nn.Lineer", HOME, "arch.type")
    assert said.startswith("arch.type: no 'Lineer' in ") and said.endswith("torch.nn. Did you mean 'Linear'?")


def test_a_module_that_needs_a_missing_package_says_which(tmp_path, monkeypatch):
    (tmp_path / "wants_a_package.py").write_text("import package_that_is_nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = message(objects.locate, "wants_a_package.Net", HOME, "arch.type")
    assert "'wants_a_package' wants 'package_that_is_nowhere'" in said and "pip install package_that_is_nowhere" in said


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


def make(found, args=(), call=True, **kwargs):
    return objects.make(found, args, kwargs, "arch", place, call)


def test_an_unknown_argument_is_named_with_its_place_and_the_nearest():
    said = message(make, Net, classes=10, dropuot=0.1)
    assert said == "config.json: arch.args.dropuot: Net has no such argument. Did you mean 'dropout'?"


def test_an_unknown_argument_in_other_letters_is_answered_with_the_right_ones():
    said = message(make, torch.optim.lr_scheduler.CosineAnnealingLR, (1,), t_MAX=3)
    assert said == "config.json: arch.args.t_MAX: CosineAnnealingLR has no such argument. Did you mean 'T_max'?"


def test_an_unknown_argument_that_is_like_none_is_answered_with_all():
    said = message(make, Net, classes=10, zzz=1)
    assert said == "config.json: arch.args.zzz: Net has no such argument. It accepts classes, dropout."


def test_a_missing_argument_is_named():
    assert message(make, Net) == "config.json: arch.args.classes: missing. Net needs it."


def test_all_missing_arguments_are_told_at_once():
    assert message(make, Drawer).split("\n") == [
        "config.json: arch.args.width: missing. Drawer needs it.",
        "config.json: arch.args.height: missing. Drawer needs it.",
    ]


class Drawer:
    def __init__(self, width, height, depth=1):
        pass


def test_all_wrong_arguments_are_told_at_once():
    said = message(make, Switches, fussed=True, mode="on", fused="false", zzz=3)
    assert [line.split(": ")[1] for line in said.split("\n")] == [
        "arch.args.fussed",
        "arch.args.fused",
        "arch.args.zzz",
    ]


def test_a_missing_argument_is_not_blamed_on_one_that_is_passed_on():
    said = message(make, Loader, drop_last=True)
    assert said == "config.json: arch.args.folder: missing. Loader needs it."


def test_an_argument_that_the_code_gives_is_not_among_the_accepted():
    assert message(make, Net, (10,), depth=3).endswith("It accepts dropout.")


def test_an_argument_that_the_code_gives_is_refused():
    assert message(make, Net, (10,), classes=3) == "config.json: arch.args.classes: is given by the code; leave it out."


def test_more_arguments_than_the_function_takes_are_named_with_the_function():
    said = message(make, bare, (1, 2))
    assert said.startswith("config.json: arch: bare")


def bare(output):
    return output


def test_an_argument_is_passed_on_through_kwargs():
    assert make(Loader, folder="here", drop_last=True).others == {"drop_last": True}


def test_an_argument_of_a_base_is_passed_on_through_kwargs():
    made = make(Images, folder="here", size=3, shuffle=True)
    assert (made.folder, made.shuffle) == ("here", True)


def test_an_argument_that_kwargs_would_swallow_is_refused_where_it_is_nearly_one_left_out():
    said = message(make, Loader, folder="here", shufle=True)
    assert said == "config.json: arch.args.shufle: Loader has no such argument. Did you mean 'shuffle'?"


def test_an_argument_that_kwargs_would_swallow_is_refused_where_it_is_nearly_one_of_a_base():
    said = message(make, Images, folder="here", shufle=True)
    assert said == "config.json: arch.args.shufle: Images has no such argument. Did you mean 'shuffle'?"


def test_an_argument_that_the_constructor_takes_out_of_its_kwargs_is_taken():
    assert make(Images, folder="here", shuffel=3).mean == 3


def test_an_argument_of_a_base_that_is_not_passed_on_is_refused_before_it_is_constructed():
    said = message(arguments.check, Fixed, (), {"folder": "there"}, "arch", place)
    assert said == "config.json: arch.args.folder: Fixed has no such argument. It accepts size."


@pytest.mark.parametrize("text", ["false", "False", "true", "no", "off", "null"])
def test_text_for_a_switch_is_refused(text):
    said = message(make, Switches, fused=text)
    assert said == f'config.json: arch.args.fused: "{text}" where true or false is wanted.'


@pytest.mark.parametrize("given", [{"fused": True}, {"foreach": "false"}, {"mode": "off"}, {"fused": "maybe"}], ids=str)
def test_text_is_passed_on_where_it_may_be_meant(given):
    assert set(given.values()) <= set(make(Switches, **given).given)


def test_a_built_in_function_without_a_signature_is_called_with_its_arguments():
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(max)
    assert make(max, (3, 5), key=lambda value: -value) == 3


def test_a_class_is_constructed_with_its_arguments():
    assert make(Net, classes=3).classes == 3


def test_a_function_is_bound_to_its_arguments_where_it_is_wanted_itself():
    made = make(loss, call=False, weight=2.0)
    assert isinstance(made, functools.partial) and made(3.0, 1.0) == 5.0


def test_a_function_without_arguments_stays_itself():
    assert make(loss, call=False) is loss


def test_an_unknown_argument_of_a_bound_function_is_found_before_it_is_called():
    said = message(make, loss, call=False, wieght=2.0)
    assert said == "config.json: arch.args.wieght: loss has no such argument. Did you mean 'weight'?"


def test_what_a_constructor_raises_is_told_with_its_place_its_arguments_and_the_line():
    said = message(make, torch.nn.Dropout, p=7)
    line = inspect.getsource(inspect.getmodule(torch.nn.Dropout)).split("\n")
    number = next(i for i, text in enumerate(line, 1) if text.strip() == "raise ValueError(")
    assert said == (
        "config.json: arch: Dropout(p=7) raised ValueError: dropout probability has to be between 0 and 1, but got 7 "
        f"(dropout.py, line {number})"
    )


def test_a_long_argument_of_a_constructor_that_raises_is_cut():
    said = message(make, torch.nn.Linear, in_features=list(range(99)), out_features=list(range(99)))
    assert said.startswith("config.json: arch: Linear(in_features=[0, 1, 2, ") and len(said) < 300 and "…" in said


def test_a_constructor_that_refuses_an_argument_names_only_the_argument_and_its_place_is_added():
    assert message(make, Picky, split=2) == "config.json: arch.args.split: 2 leaves nothing."


def test_a_constructors_own_config_error_is_passed_on_as_it_is():
    def build():
        raise ConfigError("data_loader.args.folder: nothing there")

    assert message(make, build) == "data_loader.args.folder: nothing there"


# --- objects in arguments, and what is read off others ---


def maker():
    return objects.Maker(place, lambda path, found, named: None)


def made_with(value):
    """What Pair gets for `value` as its first argument."""
    return maker().make({"type": "Pair", "args": {"first": value}}, HOME, "arch").first


def test_an_object_in_an_argument_is_made_first():
    assert made_with({"type": "Net", "args": {"classes": 3}}).classes == 3


def test_objects_in_lists_and_dicts_of_an_argument_are_made():
    (first, [second]), third = made_with([["x", [{"type": "Pair"}]], {"a": {"type": "Net", "args": {"classes": 3}}}])
    assert first == "x" and isinstance(second, Pair) and third["a"].classes == 3


def test_a_function_in_an_argument_is_bound():
    assert made_with({"type": "loss", "args": {"weight": 2.0}})(3.0, 1.0) == 5.0


@pytest.mark.parametrize(
    "value",
    [3, "type", None, [1, 2], {}, {"a": {"b": 1}}, {"type": "linear", "bias": True}, {"from": "a.b", "n": 1}],
    ids=str,
)
def test_any_other_argument_is_passed_as_it_is(value):
    assert made_with(value) == value


@pytest.mark.parametrize(
    "value",
    [
        {"typ": "Net", "args": {}},
        {"type": "Net", "arg": {}},
        {"type": "Net", "args": [1]},
        {"type": 3, "args": {}},
        {"args": {"classes": 3}},
    ],
    ids=str,
)
def test_an_object_in_an_argument_that_is_misspelt_is_refused_with_its_place(value):
    said = message(made_with, [{"a": value}])
    assert said.startswith("config.json: arch.args.first.0.a: ")
    assert said.endswith('An object is written {"type": NAME, "args": {}}.')


def test_a_mistake_inside_an_argument_is_named_with_its_whole_path():
    said = message(made_with, [{"type": "Pair", "args": {"second": {"type": "Net", "args": {"clases": 3}}}}])
    assert said.startswith("config.json: arch.args.first.0.args.second.args.clases: Net has no such argument.")


def test_an_argument_is_read_off_what_was_made():
    built = maker()
    built.built["data_loader"] = types.SimpleNamespace(vocabulary=types.SimpleNamespace(size=30))
    made = built.make({"type": "Net", "args": {"classes": {"from": "data_loader.vocabulary.size"}}}, HOME, "arch")
    assert made.classes == 30


def test_a_section_that_is_not_made_yet_is_named_with_those_that_are():
    built = maker()
    built.built |= {"data_loader": 1, "arch": 2}
    said = message(built.make, {"type": "Pair", "args": {"first": {"from": "optimizer.lr"}}}, HOME, "loss")
    assert said == (
        "config.json: loss.args.first: 'optimizer.lr': optimizer is not made before this. There is data_loader, arch."
    )


def test_an_attribute_that_is_not_there_is_named_with_the_nearest():
    built = maker()
    built.built["data_loader"] = Loader("here")
    said = message(built.make, {"type": "Pair", "args": {"first": {"from": "data_loader.shufle"}}}, HOME, "arch")
    assert said == "config.json: arch.args.first: no 'shufle' in Loader. Did you mean 'shuffle'?"


@pytest.mark.parametrize("name", ["__class__", "_hidden", "shuffle.__class__"])
def test_a_private_attribute_is_not_read_off(name):
    built = maker()
    built.built["data_loader"] = Loader("here")
    built.built["data_loader"]._hidden = 1
    said = message(built.make, {"type": "Pair", "args": {"first": {"from": f"data_loader.{name}"}}}, HOME, "arch")
    assert said.startswith("config.json: arch.args.first: ")


# --- a checkpoint's config ---


def test_a_refused_name_says_how_to_give_the_config_oneself():
    judge = functools.partial(objects.refuse_stranger, "latest.pth: loss", [])
    with pytest.raises(CheckpointError, match=r"^latest.pth: loss: .*names 'os.*\n.*-c FILE.*--trust"):
        objects.locate("os.system", types.ModuleType("home"), "loss.type", judge)

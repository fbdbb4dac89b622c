"""Configs as nested dicts: one over another, a key at a dotted path, the leaves, what differs."""

import copy

import pytest

from utils import nested
from utils.errors import ConfigError


def a_config():
    return {
        "name": "mnist",
        "arch": {"type": "MnistModel", "args": {}},
        "optimizer": {"type": "AdamW", "args": {"lr": 0.001, "betas": [0.9, 0.99]}},
        "lr_scheduler": {"type": "OneCycleLR", "args": {"max_lr": 0.1}, "interval": "step"},
        "loss": "nll_loss",
        "metrics": ["accuracy", {"type": "top_k_accuracy", "args": {"k": 3}}],
        "trainer": {"epochs": 2, "monitor": "min val_loss"},
    }


def merged(**above):
    """The sections of `a_config` that `above` changes, as they are after it."""
    made = nested.merged(a_config(), above)
    return {name: value for name, value in made.items() if value != a_config().get(name)}


# --- one config over another ---


def test_a_config_that_changes_nothing_leaves_what_it_extends():
    assert nested.merged(a_config(), {}) == a_config()


def test_a_config_over_nothing_is_itself():
    assert nested.merged({}, a_config()) == a_config()


def test_sections_merge_key_by_key():
    assert merged(trainer={"epochs": 9, "amp": "bf16"}) == {
        "trainer": {"epochs": 9, "monitor": "min val_loss", "amp": "bf16"}
    }


def test_arguments_merge_key_by_key():
    assert merged(optimizer={"args": {"lr": 0.1}}) == {
        "optimizer": {"type": "AdamW", "args": {"lr": 0.1, "betas": [0.9, 0.99]}}
    }


def test_a_section_that_was_not_there_is_added():
    assert merged(seed=3, extra={"a": {"b": 1}}) == {"seed": 3, "extra": {"a": {"b": 1}}}


@pytest.mark.parametrize("metrics", [[], ["f1"], ["f1", "accuracy", "recall"]])
def test_a_list_replaces_the_list_below_whole(metrics):
    assert merged(metrics=metrics) == {"metrics": metrics}


def test_a_list_of_arguments_replaces_the_one_below_whole():
    assert merged(optimizer={"args": {"betas": [0.5]}}) == {
        "optimizer": {"type": "AdamW", "args": {"lr": 0.001, "betas": [0.5]}}
    }


def test_null_takes_a_section_away():
    made = nested.merged(a_config(), {"lr_scheduler": None})
    assert made == {name: value for name, value in a_config().items() if name != "lr_scheduler"}


def test_null_takes_an_argument_away():
    assert merged(optimizer={"args": {"betas": None}}) == {"optimizer": {"type": "AdamW", "args": {"lr": 0.001}}}


def test_null_over_nothing_stays_null():
    made = nested.merged(a_config(), {"valid_data_loader": None, "trainer": {"clip_grad_norm": None}})
    trainer = {"epochs": 2, "monitor": "min val_loss", "clip_grad_norm": None}
    assert made == {**a_config(), "valid_data_loader": None, "trainer": trainer}


def test_another_type_drops_the_arguments_of_the_old_one():
    assert merged(optimizer={"type": "SGD", "args": {"momentum": 0.9}}) == {
        "optimizer": {"type": "SGD", "args": {"momentum": 0.9}}
    }


def test_another_type_without_arguments_has_none():
    assert merged(optimizer={"type": "SGD"}) == {"optimizer": {"type": "SGD"}}


def test_another_type_keeps_what_stands_beside_the_arguments():
    assert merged(lr_scheduler={"type": "CosineAnnealingLR"}) == {
        "lr_scheduler": {"type": "CosineAnnealingLR", "interval": "step"}
    }


def test_the_same_type_keeps_its_arguments():
    assert merged(optimizer={"type": "AdamW", "args": {"lr": 0.1}}) == {
        "optimizer": {"type": "AdamW", "args": {"lr": 0.1, "betas": [0.9, 0.99]}}
    }


def test_another_type_inside_arguments_drops_the_arguments_of_the_old_one():
    def loader(kind, **args):
        return {"type": "DataLoader", "args": {"batch_size": 4, "dataset": {"type": kind, "args": args}}}

    changed = {"args": {"dataset": {"type": "Other", "args": {"n": 2}}}}
    assert nested.merged({"data_loader": loader("Rows", n=8, path="x")}, {"data_loader": changed}) == {
        "data_loader": loader("Other", n=2)
    }


def test_a_bare_name_gets_arguments_from_above():
    assert merged(loss={"args": {"weight": [1, 2]}}) == {"loss": {"type": "nll_loss", "args": {"weight": [1, 2]}}}


def test_another_bare_name_replaces_the_whole_object():
    assert merged(optimizer="SGD") == {"optimizer": "SGD"}


def test_the_same_bare_name_keeps_the_arguments():
    assert merged(optimizer="AdamW") == {}


def test_a_value_replaces_a_section_and_a_section_a_value():
    assert merged(trainer=3, name={"a": 1})["trainer"] == 3
    assert nested.merged({"extra": 3}, {"extra": {"a": None, "b": 1}}) == {"extra": {"a": None, "b": 1}}


@pytest.mark.parametrize("value", [0, False, "", [], {}])
def test_a_value_that_counts_as_false_replaces_like_any_other(value):
    assert nested.merged({"extra": [1]}, {"extra": value}) == {"extra": value}


def test_merging_changes_neither_of_the_two():
    below, above = a_config(), {"optimizer": {"type": "SGD"}, "loss": {"args": {"weight": 1}}, "metrics": None}
    before = copy.deepcopy([below, above])
    nested.merged(below, above)
    assert [below, above] == before


# --- setting a key ---


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("seed", 3),
        ("trainer.epochs", 5),
        ("trainer.amp", "bf16"),
        ("optimizer.args.lr", 0.1),
        ("optimizer.args.betas", [0.9, 0.99]),
        ("optimizer.args.weight_decay", 0.1),
        ("optimizer.type", "SGD"),
        ("lr_scheduler", None),
        ("extra.mine", 1),
    ],
)
def test_a_key_is_set_at_its_path(path, value):
    config = {**a_config(), "extra": {}}
    nested.set_value(config, path, value)
    found = config
    for name in path.split("."):
        found = found[name]
    assert found == value


def test_an_item_of_a_list_is_set_by_its_number():
    config = a_config()
    nested.set_value(config, "metrics.1.args.k", 5)
    nested.set_value(config, "metrics.0", "f1")
    nested.set_value(config, "optimizer.args.betas.1", 0.5)
    assert config["metrics"] == ["f1", {"type": "top_k_accuracy", "args": {"k": 5}}]
    assert config["optimizer"]["args"]["betas"] == [0.9, 0.5]


def test_a_bare_name_grows_into_an_object_when_it_gets_arguments():
    config = a_config()
    nested.set_value(config, "loss.args.weight", 2.0)
    assert config["loss"] == {"type": "nll_loss", "args": {"weight": 2.0}}


def test_an_object_without_arguments_gets_its_first():
    config = {**a_config(), "arch": {"type": "MnistModel"}}
    nested.set_value(config, "arch.args.num_classes", 5)
    assert config["arch"] == {"type": "MnistModel", "args": {"num_classes": 5}}


@pytest.mark.parametrize("schedule", [{}, {"lr_scheduler": None}], ids=["left out", "null"])
def test_a_section_that_is_not_given_gets_its_first_key(schedule):
    config = {"name": "mnist", **schedule}
    nested.set_value(config, "lr_scheduler.type", "StepLR")
    assert config["lr_scheduler"] == {"type": "StepLR"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("trainer.epochs.x", "trainer.epochs.x: there is only 2 before 'x'."),
        ("metrics.7", "metrics.7: the list has 2 items, counted from 0."),
        ("metrics.-1", "metrics.-1: the list has 2 items, counted from 0."),
        ("metrics.first", "metrics.first: the list has 2 items, counted from 0."),
    ],
)
def test_a_path_that_can_not_be_is_told_with_what_is_there(path, said):
    with pytest.raises(ConfigError) as caught:
        nested.set_value(a_config(), path, 1)
    assert str(caught.value) == f"command line: {said}"


# --- the leaves ---


def test_the_leaves_are_dotted_paths_with_the_items_of_lists_counted_from_0():
    assert nested.leaves(a_config()) == [
        ("name", "mnist"),
        ("arch.type", "MnistModel"),
        ("arch.args", {}),
        ("optimizer.type", "AdamW"),
        ("optimizer.args.lr", 0.001),
        ("optimizer.args.betas.0", 0.9),
        ("optimizer.args.betas.1", 0.99),
        ("lr_scheduler.type", "OneCycleLR"),
        ("lr_scheduler.args.max_lr", 0.1),
        ("lr_scheduler.interval", "step"),
        ("loss", "nll_loss"),
        ("metrics.0", "accuracy"),
        ("metrics.1.type", "top_k_accuracy"),
        ("metrics.1.args.k", 3),
        ("trainer.epochs", 2),
        ("trainer.monitor", "min val_loss"),
    ]


@pytest.mark.parametrize("value", [None, 0, "", [], {}])
def test_what_has_nothing_inside_is_one_leaf(value):
    assert nested.leaves({"a": {"b": value}}) == [("a.b", value)]


def test_the_leaves_of_a_value_stand_below_its_own_path():
    assert nested.leaves({"lr": 0.1, "betas": [1]}, "optimizer.args") == [
        ("optimizer.args.lr", 0.1),
        ("optimizer.args.betas.0", 1),
    ]
    assert nested.leaves(3, "seed") == [("seed", 3)]


# --- what differs ---


def test_differences_are_dotted_paths_with_both_values():
    before, after = a_config(), a_config()
    after["trainer"] |= {"epochs": 5, "amp": "bf16"}
    del after["optimizer"]["args"]["lr"]
    assert nested.differences(before, after) == [
        ("optimizer.args.lr", 0.001, None),
        ("trainer.epochs", 2, 5),
        ("trainer.amp", None, "bf16"),
    ]


def test_equal_configs_have_no_differences():
    assert nested.differences(a_config(), a_config()) == []


def test_an_object_in_place_of_a_name_is_one_difference():
    assert nested.differences({"loss": "a"}, {"loss": {"type": "a"}}) == [("loss", "a", {"type": "a"})]


def test_a_list_that_differs_is_one_difference():
    assert nested.differences({"metrics": ["a", "b"]}, {"metrics": ["a"]}) == [("metrics", ["a", "b"], ["a"])]


# --- one over another, what a child may take away ---


@pytest.mark.parametrize(
    ("below", "above", "made"),
    [
        (
            {"optimizer": {"type": "SGD", "args": {"lr": 1}}},
            {"optimizer": {"args": None}},
            {"optimizer": {"type": "SGD"}},
        ),
        ({"trainer": {"epochs": 3}}, {"trainer": None}, {}),
        ({"valid_data_loader": {"a": "A", "b": "B"}}, {"valid_data_loader": None}, {}),
    ],
)
def test_null_takes_away_whatever_it_stands_for(below, above, made):
    assert nested.merged(below, above) == made


ONE, SEVERAL = {"type": "SGD", "args": {"lr": 1}}, {"a": {"type": "SGD"}, "b": {"type": "Adam"}}


@pytest.mark.parametrize(("below", "above"), [(ONE, SEVERAL), (SEVERAL, ONE), (ONE, {"from": "data_loader.x"})])
def test_several_in_the_place_of_one_and_the_reverse_replace_it(below, above):
    assert nested.merged({"optimizer": below}, {"optimizer": above}) == {"optimizer": above}


def test_a_section_that_is_left_out_begins_with_its_default():
    config = {}
    nested.set_value(config, "parallel.timeout_seconds", 60)
    assert config == {"parallel": {"type": "auto", "args": {}, "timeout_seconds": 60}}

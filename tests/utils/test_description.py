"""The one description of what a config may hold: the check, the defaults, and how a key is set."""

import copy
import re
from pathlib import Path

import pytest

from utils import description
from utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def a_config(**trainer):
    return {
        "name": "mnist",
        "arch": {"type": "MnistModel", "args": {}},
        "data_loader": {"type": "MnistDataLoader", "args": {"batch_size": 128}},
        "optimizer": {"type": "AdamW", "args": {"lr": 0.001}},
        "loss": "nll_loss",
        "trainer": {"epochs": 2, **trainer},
    }


def problems(**changes):
    return description.problems({**a_config(), **changes})


# --- the check ---


def test_a_sound_config_has_no_problem():
    assert description.problems(a_config()) == []


def test_a_complete_config_has_no_problem():
    assert description.problems(description.with_defaults(a_config())) == []


def test_an_unknown_section_is_named_with_the_nearest():
    (line,) = problems(optimiser="SGD")
    assert line.startswith("optimiser: unknown. Did you mean 'optimizer'?") and "'extra'" in line


def test_an_unknown_key_of_the_trainer_is_named_with_the_nearest_and_all():
    (line,) = description.problems(a_config(early_stopp=3))
    assert line.startswith("trainer.early_stopp: unknown. Did you mean 'early_stop'? It accepts ")


@pytest.mark.parametrize("missing", ["name", "arch", "data_loader", "optimizer", "loss"])
def test_a_section_that_every_run_needs_is_missed(missing):
    config = a_config()
    del config[missing]
    (line,) = description.problems(config)
    assert line.startswith(f"{missing}: missing.")


def test_a_run_needs_epochs_or_steps():
    assert description.problems(a_config(epochs=None)) == ["trainer.epochs: missing. Give epochs, max_steps or both."]
    assert description.problems(a_config(epochs=None, max_steps=5)) == []


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed", 1.5, "seed: 1.5 where a whole number is wanted."),
        ("seed", True, "seed: True where a whole number is wanted."),
        ("deterministic", 1, "deterministic: 1 where true or false is wanted."),
        ("name", 3, "name: 3 where text is wanted."),
        ("loss", ["a"], 'loss: [\'a\'] where a name or {"type": name, "args": {}} is wanted.'),
        ("arch", {"args": {}}, 'arch: {\'args\': {}} where a name or {"type": name, "args": {}} is wanted.'),
        ("metrics", "accuracy", "metrics: 'accuracy' where a list of objects is wanted."),
        ("trainer", [], "trainer: [] where {key: value} is wanted."),
    ],
)
def test_a_value_of_another_kind_is_shown_with_what_is_wanted(key, value, said):
    assert problems(**{key: value}) == [said]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("epochs", "ten", "trainer.epochs: 'ten' where a whole number or null is wanted."),
        ("clip_grad_norm", "1", "trainer.clip_grad_norm: '1' where a number or null is wanted."),
        ("tensorboard", "yes", "trainer.tensorboard: 'yes' where true or false is wanted."),
        ("epochs", 0, "trainer.epochs: 0 is too small; the least is 1."),
        ("accumulate", 0, "trainer.accumulate: 0 is too small; the least is 1."),
        ("min_delta", -0.5, "trainer.min_delta: -0.5 is too small; the least is 0."),
        ("amp", "bf61", "trainer.amp: no 'bf61'. Did you mean 'bf16'? It is one of off, bf16, fp16."),
    ],
)
def test_a_trainers_value_that_does_not_do_is_shown_with_what_does(name, value, said):
    assert description.problems(a_config(**{name: value})) == [said]


@pytest.mark.parametrize("monitor", ["min val_loss", "max val_accuracy", "off"])
def test_a_monitor_says_min_or_max_and_a_number_or_off(monitor):
    assert description.problems(a_config(monitor=monitor)) == []


@pytest.mark.parametrize("monitor", ["val_loss", "least val_loss", "min", ""])
def test_a_monitor_that_says_neither_is_refused(monitor):
    (line,) = description.problems(a_config(monitor=monitor))
    assert line.startswith("trainer.monitor: ") and "min val_loss" in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arch": {"type": "Net", "arg": {}}}, "arch.arg: unknown. Did you mean 'args'? It accepts type, args."),
        ({"arch": {"type": "Net", "args": [1]}}, "arch.args: [1] where {argument: value} is wanted."),
        ({"lr_scheduler": {"type": "StepLR", "interval": "batch"}}, "lr_scheduler.interval: no 'batch'."),
        ({"metrics": ["accuracy", {"type": "f1", "nam": "x"}]}, "metrics.1.nam: unknown. Did you mean 'name'?"),
        ({"optimizer": {"g": {"type": "SGD", "param": "*"}}}, "optimizer.g.param: unknown. Did you mean 'params'?"),
    ],
)
def test_a_slip_inside_an_object_is_named_with_its_path(changes, said):
    (line,) = problems(**changes)
    assert line.startswith(said)


def test_all_problems_are_told_at_once():
    config = {**a_config(epochs=-1, amp="int8"), "seeed": 1, "loss": 3}
    assert [line.split(":")[0] for line in description.problems(config)] == [
        "seeed",
        "loss",
        "trainer.epochs",
        "trainer.amp",
    ]


def test_a_key_of_ones_own_goes_into_extra():
    assert problems(extra={"anything": [1, {"at": "all"}]}) == []


# --- the defaults ---


def test_what_is_left_out_gets_its_default():
    filled = description.with_defaults(a_config())
    assert filled["seed"] == 0 and filled["trainer"]["accumulate"] == 1 and filled["trainer"]["monitor"] == "off"


def test_what_is_given_stays_as_it_is():
    filled = description.with_defaults({**a_config(accumulate=4), "seed": 3})
    assert filled["seed"] == 3 and filled["trainer"]["accumulate"] == 4


def test_filling_in_defaults_leaves_the_given_config_alone():
    given = a_config()
    before = copy.deepcopy(given)
    description.with_defaults(given)
    assert given == before


def test_a_default_is_of_the_kind_that_its_key_accepts():
    config = description.with_defaults(a_config())
    assert description.problems(config) == []


def test_one_configs_default_is_not_anothers():
    first = description.with_defaults(a_config())
    first["metrics"].append("accuracy")
    first["trainer"]["args"]["depth"] = 3
    second = description.with_defaults(a_config())
    assert second["metrics"] == [] and second["trainer"]["args"] == {}


def test_every_key_is_used_somewhere():
    sources = [
        *ROOT.glob("*.py"),
        *(p for d in ("base", "logger", "trainer", "utils") for p in (ROOT / d).glob("*.py")),
    ]
    text = "\n".join(p.read_text(encoding="utf-8") for p in sources if p.name != "description.py")
    names = [key.path.rpartition(".")[2] for key in description.KEYS if key.path != "extra"]
    assert [name for name in names if not re.search(rf"""["'.]{name}["'.]""", text)] == []


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
        ("optimizer.type", "SGD"),
        ("lr_scheduler", None),
        ("extra.mine", 1),
    ],
)
def test_a_key_is_set_at_its_path(path, value):
    config = {**a_config(), "extra": {}}
    description.set_value(config, path, value)
    found = config
    for name in path.split("."):
        found = found[name]
    assert found == value


def test_an_item_of_a_list_is_set_by_its_number():
    config = {**a_config(), "metrics": ["accuracy", {"type": "top_k_accuracy", "args": {"k": 3}}]}
    description.set_value(config, "metrics.1.args.k", 5)
    description.set_value(config, "metrics.0", "f1")
    assert config["metrics"] == ["f1", {"type": "top_k_accuracy", "args": {"k": 5}}]


def test_a_bare_name_grows_into_an_object_when_it_gets_arguments():
    config = a_config()
    description.set_value(config, "loss.args.weight", 2.0)
    assert config["loss"] == {"type": "nll_loss", "args": {"weight": 2.0}}


def test_an_object_without_arguments_gets_its_first():
    config = {**a_config(), "arch": {"type": "MnistModel"}}
    description.set_value(config, "arch.args.num_classes", 5)
    assert config["arch"] == {"type": "MnistModel", "args": {"num_classes": 5}}


@pytest.mark.parametrize(
    ("path", "said", "nearest"),
    [
        ("optimiser.args.lr", "optimiser: ", "'optimizer'"),
        ("trainer.epoch", "trainer.epoch: ", "'epochs'"),
        ("sed", "sed: ", "'seed'"),
        ("trainer.epochs.x", "trainer.epochs.x: ", ""),
        ("metrics.7", "metrics.7: the list has 1 items, counted from 0.", ""),
        ("optimizer.arg.lr", "optimizer.arg: ", "'args'"),
    ],
)
def test_a_path_that_is_not_there_is_named_with_the_nearest(path, said, nearest):
    config = {**a_config(), "metrics": ["accuracy"]}
    with pytest.raises(ConfigError) as caught:
        description.set_value(config, path, 1)
    assert str(caught.value).startswith(f"command line: {said}")
    assert f"Did you mean {nearest}" in str(caught.value) or not nearest


# --- what differs ---


def test_differences_are_dotted_paths_with_both_values():
    before, after = a_config(), a_config(epochs=5, amp="bf16")
    after["optimizer"]["args"] = {}
    assert description.differences(before, after) == [
        ("optimizer.args.lr", 0.001, None),
        ("trainer.epochs", 2, 5),
        ("trainer.amp", None, "bf16"),
    ]


def test_equal_configs_have_no_differences():
    assert description.differences(a_config(), a_config()) == []


def test_an_object_in_place_of_a_name_is_one_difference():
    assert description.differences({"loss": "a"}, {"loss": {"type": "a"}}) == [("loss", "a", {"type": "a"})]

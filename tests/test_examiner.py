"""What the check finds wrong with a config's objects, with their modules at hand and before anything is made."""

import sys

import pytest
import torch
import toy
from lab import history
from torch import nn
from torch.utils.data import Dataset

from base import BaseDataLoader, BaseTrainer
from parse_config import ConfigParser
from trainer import trainer as ours
from utils.errors import ConfigError
from utils.metrics import RESERVED

made = []  # the objects of this module that were constructed


class Rows(Dataset):
    def __init__(self, count=8, transforms=(), key=None):
        made.append(self)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(1), torch.zeros(1)


class Flip:
    def __init__(self, share=0.5):
        made.append(self)


def rescaled(image, factor, offset=0.0):
    return image * factor + offset


class Net(nn.Module):
    def __init__(self, classes=1, body=None):
        super().__init__()
        made.append(self)


def build_net(classes, depth=1):
    return Net(classes)


def build_loader(count=8):
    return BaseDataLoader(Rows(count), validation_split=0.5)


def build_optimizer(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr)


def build_schedule(optimizer, step_size):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size)


def weighted(output, target, weight):
    return (output - target).mean() * weight


def of_output(output):
    return output.mean()


def error(output, target, power=2):
    return (output - target).abs().pow(power).mean()


class Counted:
    """A metric with state."""

    def __init__(self, top=1):
        made.append(self)

    def update(self, output, target):
        pass

    def compute(self):
        return 0.0

    def reset(self):
        pass


class SelfNamed(Counted):
    """Says itself what its number is called."""

    __name__ = "f1"


class NamedWhenMade(Counted):
    def __init__(self):
        super().__init__()
        self.__name__ = "f1"


class Called:
    def __call__(self, output, target):
        return 0.0


class Half:
    """A metric that was left half done."""

    def update(self, output, target):
        pass

    def compute(self):
        return 0.0


class Splitting(BaseDataLoader):
    """Sets examples apart although its arguments do not say so."""

    def __init__(self, count=8):
        super().__init__(Rows(count), validation_split=0.5)


class SplitByRule(BaseDataLoader):
    def split_validation(self):
        return BaseDataLoader(Rows())


class SamplersByRule(BaseDataLoader):
    def _split_sampler(self, split):
        return torch.utils.data.SubsetRandomSampler(range(4)), range(4, 8)


class OwnTrainer(ours.Trainer):
    """Our loop, and an argument of its own."""

    def __init__(self, *args, temperature, **more):
        super().__init__(*args, **more)


class OwnLoop(ours.Trainer):
    def _train_epoch(self, epoch):
        return {"anything": 1.0}


class OwnValidation(ours.Trainer):
    def _valid_epoch(self, epoch):
        return super()._valid_epoch(epoch) | {"anything": 1.0}


class Trainer(BaseTrainer):
    """A trainer of one's own, called as ours is."""

    def __init__(self, model, criterion, metric_ftns, optimizer, config, data_loader, **more):
        super().__init__(model, criterion, metric_ftns, optimizer, config)

    def _train_epoch(self, epoch):
        return {"anything": 1.0}


class WithoutMore(BaseTrainer):
    def __init__(self, net, loss, measures, optimizer, config, data_loader):
        super().__init__(net, loss, measures, optimizer, config)

    def _train_epoch(self, epoch):
        return {}


HERE = __name__


def of(name, **args):
    """The section of an object of this module."""
    return {"type": f"{HERE}.{name}", "args": args}


def loader(**args):
    return {"type": "DataLoader", "args": {"dataset": of("Rows"), "batch_size": 2, **args}}


def problems(trainer=(), **sections):
    """What the check says of a sound config with the sections given here, a line each."""
    config = {
        "name": "doctor",
        "arch": of("Net"),
        "data_loader": loader(),
        "optimizer": {"type": "SGD", "args": {"lr": 0.1}},
        "loss": "torch.nn.functional.mse_loss",
        "trainer": {"epochs": 1, "tensorboard": False, **dict(trainer)},
        **sections,
    }
    try:
        ConfigParser(config).check()
    except ConfigError as error:
        lines = str(error).split("\n")
        assert all(line.startswith("config: ") for line in lines)
        return [line.removeprefix("config: ") for line in lines]
    return []


def places(*args, **sections):
    return [line.partition(":")[0] for line in problems(*args, **sections)]


def test_a_sound_config_has_no_problem():
    assert problems() == []


def test_nothing_is_made():
    made.clear()
    rows = of("Rows", transforms=[of("Flip")])
    assert problems(arch=of("Net", body=of("Net")), data_loader=loader(dataset=rows), metrics=[of("Counted")]) == []
    assert made == []


def test_all_problems_are_told_at_once_each_with_its_place():
    assert places(
        arch=of("Net", clases=3),
        data_loader=loader(dataset=of("Rows", cuont=3), sampler=of("Nothing")),
        loss=of("weighted"),
        metrics=["accuracy", "acuracy", {"type": "top_k_accuracy", "args": {"kk": 3}}],
        optimizer="SGDD",
        lr_scheduler={"type": "StepLR", "args": {"step": 3}},
        trainer={"type": "Trainr"},
    ) == [
        "data_loader.args.dataset.args.cuont",
        "data_loader.args.sampler.type",
        "arch.args.clases",
        "loss.args.weight",
        "metrics.1.type",
        "metrics.2.args.kk",
        "optimizer.type",
        "lr_scheduler.args.step",
        "trainer.type",
    ]


# --- names ---


@pytest.mark.parametrize(
    ("section", "value", "place", "nearest"),
    [
        ("arch", "MnistModle", "arch.type", "MnistModel"),
        ("data_loader", {"type": "DataLoaderr"}, "data_loader.type", "DataLoader"),
        ("valid_data_loader", {"near": "DataLoader", "far": "DataLoadr"}, "valid_data_loader.far.type", "DataLoader"),
        ("test_data_loader", "MnistLoader", "test_data_loader.type", "MnistDataLoader"),
        ("loss", "nl_loss", "loss.type", "nll_loss"),
        ("metrics", ["accuracy", "acuracy"], "metrics.1.type", "accuracy"),
        ("optimizer", {"a": {"type": "AdamWW", "params": "*"}}, "optimizer.a.type", "AdamW"),
        ("lr_scheduler", "StepRL", "lr_scheduler.type", "StepLR"),
        ("trainer", {"type": "trainer"}, "trainer.type", "Trainer"),
    ],
)
def test_a_misspelt_name_is_answered_with_its_place_and_the_nearest(section, value, place, nearest):
    found = [line for line in problems(**{section: value}) if line.startswith(f"{place}: no ")]
    assert len(found) == 1 and f"Did you mean '{nearest}'?" in found[0]


def test_a_module_that_is_not_there_is_named():
    (line,) = problems(arch="nowhere_at_all.Net")
    assert line.startswith("arch.type: ") and "no module 'nowhere_at_all'" in line


# --- arguments ---


def test_the_arguments_of_an_object_in_an_argument_are_looked_at():
    (line,) = problems(data_loader=loader(dataset=of("Rows", transforms=of("Flip", shaer=1))))
    assert line == (
        "data_loader.args.dataset.args.transforms.args.shaer: Flip has no such argument. Did you mean 'share'?"
    )


def test_the_arguments_of_objects_in_lists_and_dicts_are_looked_at():
    transforms = [of("Flip"), {"a": [of("Flip", share=1), of("Flip", shaer=1)]}]
    (line,) = problems(data_loader=loader(dataset=of("Rows", transforms=transforms)))
    assert line.startswith("data_loader.args.dataset.args.transforms.1.a.1.args.shaer: ")


def test_a_function_in_an_argument_is_bound_and_may_lack_arguments():
    assert problems(data_loader=loader(collate_fn=of("rescaled", offset=1))) == []


def test_an_argument_that_a_function_in_an_argument_does_not_have_is_refused():
    (line,) = problems(data_loader=loader(collate_fn=of("rescaled", ofset=1)))
    assert line == "data_loader.args.collate_fn.args.ofset: rescaled has no such argument. Did you mean 'offset'?"


def test_a_class_in_an_argument_lacks_no_argument():
    (line,) = problems(arch=of("Net", body={"type": "torch.nn.Linear", "args": {"in_features": 3}}))
    assert line == "arch.args.body.args.out_features: missing. Linear needs it."


def test_a_misspelt_object_in_an_argument_is_refused():
    (line,) = problems(data_loader=loader(dataset={"typ": f"{HERE}.Rows", "args": {}}))
    assert line.startswith("data_loader.args.dataset: ")


@pytest.mark.parametrize(
    ("section", "value", "argument"),
    [
        ("arch", of("build_net"), "classes"),
        ("data_loader", {"type": "MnistDataLoader", "args": {"batch_size": 2}}, "data_dir"),
        ("lr_scheduler", "StepLR", "step_size"),
        ("lr_scheduler", of("build_schedule"), "step_size"),
        ("metrics", [of("weighted")], "weight"),
        ("loss", of("weighted"), "weight"),
        ("trainer", {"epochs": 1, "type": f"{HERE}.OwnTrainer"}, "temperature"),
    ],
)
def test_a_missing_argument_is_named(section, value, argument):
    place = f"{section}.0" if section == "metrics" else section
    (line,) = problems(**{section: value})
    assert line.startswith(f"{place}.args.{argument}: missing.")


@pytest.mark.parametrize(
    "sections",
    [
        {"loss": of("weighted", weight=2)},
        {"loss": of("error")},
        {"loss": {"type": "torch.nn.CrossEntropyLoss", "args": {"label_smoothing": 0.1}}},
        {"metrics": [of("error", power=1)]},
        {"metrics": [of("Counted", top=3), of("Called")]},
        {"lr_scheduler": "OneCycleLR"},
        {"lr_scheduler": {"type": "OneCycleLR", "interval": "step", "args": {"epochs": 3}}},
        {"lr_scheduler": "CosineAnnealingLR"},
        {"lr_scheduler": of("build_schedule", step_size=3)},
        {"arch": of("build_net", classes=3)},
        {"data_loader": of("build_loader")},
        {"optimizer": of("build_optimizer", lr=0.2)},
        {"trainer": {"epochs": 1, "type": f"{HERE}.OwnTrainer", "args": {"temperature": 1, "len_epoch": 3}}},
        {"trainer": {"epochs": 1, "type": f"{HERE}.Trainer"}},
    ],
    ids=str,
)
def test_what_the_code_gives_or_the_config_is_not_missing(sections):
    assert problems(**sections) == []


def test_a_loss_that_takes_the_output_alone_is_refused():
    (line,) = problems(loss=of("of_output"))
    assert line.partition(": ")[0] in ("loss", "loss.type") and "of_output" in line


@pytest.mark.parametrize(
    ("sections", "place"),
    [
        ({"optimizer": {"type": "SGD", "args": {"params": 3}}}, "optimizer.args.params"),
        ({"lr_scheduler": {"type": "StepLR", "args": {"step_size": 1, "optimizer": 3}}}, "lr_scheduler.args.optimizer"),
        ({"loss": of("error", output=3)}, "loss.args.output"),
        ({"trainer": {"epochs": 1, "args": {"model": 3}}}, "trainer.args.model"),
    ],
)
def test_an_argument_that_the_code_gives_is_refused(sections, place):
    assert problems(**sections) == [f"{place}: is given by the code; leave it out."]


# --- what is read off another object ---


@pytest.mark.parametrize(
    "sections",
    [
        {"arch": of("Net", classes={"from": "data_loader.num_classes"})},
        {"loss": of("weighted", weight={"from": "data_loader.weights.of.classes"})},
        {"valid_data_loader": loader(dataset=of("Rows", key={"from": "data_loader.vocabulary"}))},
        {"metrics": [of("error", power={"from": "arch.power"})]},
    ],
    ids=str,
)
def test_what_is_made_before_may_be_read_off(sections):
    assert problems(**sections) == []


@pytest.mark.parametrize(
    ("sections", "place", "named"),
    [
        (
            {"data_loader": loader(dataset=of("Rows", key={"from": "arch.size"}))},
            "data_loader.args.dataset.args.key",
            "arch",
        ),
        ({"arch": of("Net", classes={"from": "optimizer.lr"})}, "arch.args.classes", "optimizer"),
        ({"arch": of("Net", classes={"from": "arch.classes"})}, "arch.args.classes", "arch"),
        ({"arch": of("Net", classes={"from": "dataloader.classes"})}, "arch.args.classes", "dataloader"),
        ({"arch": of("Net", classes={"from": "valid_data_loader.n"})}, "arch.args.classes", "valid_data_loader"),
    ],
)
def test_what_is_made_later_or_never_may_not_be_read_off(sections, place, named):
    (line,) = problems(**sections)
    assert line.startswith(f"{place}: ") and f"{named} is not made before this" in line


def test_what_only_a_test_makes_may_not_be_read_off():
    (line,) = problems(test_data_loader=loader(), arch=of("Net", classes={"from": "test_data_loader.n"}))
    assert line.startswith("arch.args.classes: ") and "test_data_loader is not made before this" in line


# --- what a section wants ---


@pytest.mark.parametrize(
    ("section", "value", "place"),
    [
        ("arch", of("Rows"), "arch.type"),
        ("data_loader", {"type": "torch.utils.data.DataLoader", "args": {"dataset": of("Rows")}}, "data_loader.type"),
        ("valid_data_loader", {"a": loader(), "b": of("Rows")}, "valid_data_loader.b.type"),
        ("test_data_loader", of("Rows"), "test_data_loader.type"),
        ("optimizer", of("Net"), "optimizer.type"),
        ("lr_scheduler", of("Counted"), "lr_scheduler.type"),
        ("loss", of("Rows"), "loss.type"),
        ("loss", of("Counted"), "loss.type"),
        ("metrics", [of("Called"), of("Half")], "metrics.1.type"),
        ("metrics", [of("Rows")], "metrics.0.type"),
        ("trainer", {"epochs": 1, "type": f"{HERE}.Net"}, "trainer.type"),
    ],
)
def test_a_class_of_another_kind_is_refused(section, value, place):
    (line,) = problems(**{section: value})
    kind = line.partition(": ")[2].split()[0]
    assert line.startswith(f"{place}: ") and kind in ("Rows", "DataLoader", "Net", "Counted", "Half")


def test_a_metric_class_says_which_methods_it_lacks():
    (line,) = problems(metrics=[of("Half")])
    assert line == "metrics.0.type: Half has no reset. Add it, or name another."


def test_an_optimizer_that_asks_for_the_loss_again_is_refused():
    (line,) = problems(optimizer={"type": "LBFGS", "args": {"lr": 1}})
    assert line.startswith("optimizer.type: LBFGS asks for the loss again")
    (line,) = problems(optimizer={"a": {"type": "SGD", "params": "a.*"}, "b": {"type": "LBFGS", "params": "b.*"}})
    assert line.startswith("optimizer.b.type: LBFGS asks for the loss again")


def test_a_loop_of_ones_own_may_give_the_loss_again():
    assert problems({"type": f"{HERE}.OwnLoop"}, optimizer="LBFGS") == []


def test_tensorboard_that_is_not_installed_is_named_with_both_ways_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as where it is not installed
    (line,) = problems({"tensorboard": True})
    assert line.startswith("trainer.tensorboard: ") and "pip install tensorboard" in line and "false" in line
    assert problems({"tensorboard": False}) == []


@pytest.mark.parametrize("metrics", [[of("error"), of("error", power=1)], [{**of("error"), "name": "loss"}]], ids=str)
def test_two_numbers_of_one_name_are_refused(metrics):
    (line,) = problems(metrics=metrics)
    assert line.startswith("metrics: ") and ("'error'" in line or "'loss'" in line) and "'name'" in line


def test_two_metrics_of_one_function_may_have_names_of_their_own():
    assert problems(metrics=[of("error"), {**of("error", power=1), "name": "distance"}]) == []


# --- the monitor ---


PLATEAU = {"type": "ReduceLROnPlateau", "args": {"patience": 1}}


def test_plateau_without_a_monitor_is_refused():
    (line,) = problems(lr_scheduler=PLATEAU)
    assert line.startswith("trainer.monitor: ") and "ReduceLROnPlateau" in line and "'min val_loss'" in line


def test_plateau_that_counts_steps_is_refused():
    (line,) = problems({"monitor": "min loss"}, lr_scheduler={**PLATEAU, "interval": "step"})
    assert line.startswith("lr_scheduler.interval: ReduceLROnPlateau waits for validations")


def test_plateau_by_its_dotted_path_and_by_name_is_found_as_well():
    optimizers = {"a": {"type": "SGD", "params": "a.*"}, "b": {"type": "SGD", "params": "b.*"}}
    dotted = {"type": "torch.optim.lr_scheduler.ReduceLROnPlateau", "interval": "step"}
    assert places(optimizer=optimizers, lr_scheduler={"b": dotted}) == ["trainer.monitor", "lr_scheduler.b.interval"]


@pytest.mark.parametrize("schedule", [PLATEAU, {**PLATEAU, "interval": "epoch"}], ids=str)
def test_plateau_waits_for_a_number_of_the_run(schedule):
    assert problems({"monitor": "min loss"}, lr_scheduler=schedule) == []
    assert places({"monitor": "min val_loss"}, lr_scheduler=schedule) == ["trainer.monitor"]


METRICS = [of("error"), {**of("Counted"), "name": "top"}]
SETS = {
    "none": ({}, [""]),
    "one": ({"valid_data_loader": loader()}, ["", "val_"]),
    "several": ({"valid_data_loader": {"near": loader(), "far": loader()}}, ["", "val_near_", "val_far_"]),
    "a share": ({"data_loader": loader(validation_split=0.5)}, ["", "val_"]),
    "a count": ({"data_loader": loader(validation_split=2)}, ["", "val_"]),
    "its own": ({"data_loader": of("Splitting")}, ["", "val_"]),
    "by a function": ({"data_loader": of("build_loader")}, ["", "val_"]),
    "by its own rule": ({"data_loader": {**loader(), "type": f"{HERE}.SplitByRule"}}, ["", "val_"]),
    "by its own samplers": ({"data_loader": {**loader(), "type": f"{HERE}.SamplersByRule"}}, ["", "val_"]),
}


@pytest.mark.parametrize(("sections", "prefixes"), SETS.values(), ids=SETS.keys())
def test_any_number_that_is_measured_on_any_set_may_be_monitored(sections, prefixes):
    for prefix in prefixes:
        for name in ("loss", "error", "top"):
            assert problems({"monitor": f"max {prefix}{name}"}, metrics=METRICS, **sections) == []


@pytest.mark.parametrize(("sections", "prefixes"), SETS.values(), ids=SETS.keys())
def test_a_number_that_is_not_measured_on_a_set_may_not_be_monitored(sections, prefixes):
    unknown = {"", "val_", "val_near_", "val_far_", "val_other_"} - set(prefixes)
    names = [*(f"{prefix}loss" for prefix in unknown), *(f"{prefix}accuracy" for prefix in prefixes)]
    for name in names:
        (line,) = problems({"monitor": f"min {name}"}, metrics=METRICS, **sections)
        assert line.startswith(f"trainer.monitor: this run does not measure '{name}'.")


def test_a_misspelt_monitor_is_answered_with_the_nearest():
    (line,) = problems({"monitor": "min val_eror"}, metrics=METRICS, valid_data_loader=loader())
    assert line.endswith("Did you mean 'val_error'?")


def test_a_monitor_that_is_like_nothing_is_answered_with_all_that_is_measured():
    (line,) = problems({"monitor": "min zzz"}, metrics=METRICS, valid_data_loader=loader())
    assert line.endswith("There is loss, error, top, val_loss, val_error, val_top.")


def test_a_run_that_overfits_validates_on_its_training_batches():
    assert problems({"monitor": "min val_loss", "overfit": 1}) == []


@pytest.mark.parametrize("kind", ["SelfNamed", "NamedWhenMade"])
def test_a_metric_object_is_monitored_by_the_name_in_the_config(kind):
    assert problems({"monitor": f"max {kind}"}, metrics=[of(kind)]) == []
    assert problems({"monitor": "max f1"}, metrics=[{**of(kind), "name": "f1"}]) == []


def test_a_metric_that_is_not_found_is_told_and_the_monitor_is_not_blamed():
    (line,) = problems({"monitor": "max f2"}, metrics=[of("F2")])
    assert line.startswith("metrics.0.type: ")


def test_a_trainer_with_our_loop_measures_what_ours_does():
    trainer = {"type": f"{HERE}.OwnTrainer", "args": {"temperature": 1}}
    (line,) = problems({**trainer, "monitor": "max f1"})
    assert line.startswith("trainer.monitor: this run does not measure 'f1'.")


@pytest.mark.parametrize("kind", ["OwnLoop", "OwnValidation", "Trainer"])
def test_a_loop_of_ones_own_may_measure_anything(kind):
    assert problems({"type": f"{HERE}.{kind}", "monitor": "max anything"}) == []


@pytest.mark.parametrize(
    ("sections", "trainer"),
    [
        ({"valid_data_loader": None}, {}),
        ({"valid_data_loader": toy.rows(3, batch_size=2)}, {}),
        ({"valid_data_loader": {"near": toy.rows(3, batch_size=2), "far": toy.rows(5, batch_size=2)}}, {}),
        ({"valid_data_loader": None, "data_loader": toy.rows(12, batch_size=4, validation_split=4)}, {}),
        ({}, {"overfit": 2}),
    ],
    ids=["no set", "one set", "several sets", "a split", "overfit"],
)
def test_every_number_that_a_run_has_measured_and_no_other_could_have_been_its_monitor(lab, sections, trainer):
    metrics = ["toy.mean_target", {"type": "toy.squared", "name": "error"}]
    sections = {"metrics": metrics, **sections, "trainer": {"epochs": 1, "monitor": "off", "overfit": None, **trainer}}
    config = toy.config(lab.saved, **sections)
    assert lab.train(config).code == 0
    measured = [name for name in history(lab.run)[0] if name == "loss" or name not in RESERVED]
    assert len(measured) >= 3
    for name in ["loss", "error", "val_loss", "val_error", "val_near_error", "val_far_mean_target", *measured]:
        assert (name, lab.train(config, "--check", f"trainer.monitor=min {name}").code) == (
            name,
            0 if name in measured else 2,
        )


def test_a_trainer_that_would_not_take_what_it_is_given_is_refused():
    (line,) = problems({"type": f"{HERE}.WithoutMore"})
    assert line.startswith("trainer: WithoutMore does not take device, ") and line.endswith("add **kwargs to it.")

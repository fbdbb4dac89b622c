"""The config's doctor, by whole commands: what is wrong is told before any work, what is right is shown and trains."""

import argparse
import json
import shlex
import shutil
import sys

import pytest
import toy
from lab import history, load

from parse_config import ConfigParser
from utils import config_file, description
from utils.errors import exit_code

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def assert_refused(lab, done, *problems):
    """Each problem has one line, which holds all its words; nothing was begun and nothing is left."""
    lines = done.err.splitlines()
    assert done.code == 2 and done.out == "" and len(lines) == len(problems), done.err + done.out
    for words in problems:
        assert sum(all(word in line for word in words) for line in lines) == 1, (words, done.err)
    assert files_of(lab) == ["experiment"] and lab.probe("x") == lab.probe("lr") == []


def files_of(lab):
    """What there is beside the probes and the note of the folders that configs came from."""
    names = (path.name for path in lab.folder.parent.iterdir())
    return sorted(name for name in names if name not in ("config_folders", "probe.jsonl"))


def origins(done):
    """{dotted path: (value, what set it)} of a table that --check printed."""
    rows = [line.split(None, 1) for line in done.out.splitlines()]
    return {path: tuple(part.strip() for part in rest.rsplit("  ", 1)) for path, rest in rows}


# --- what is wrong ---------------------------------------------------------------------------------------------------


def test_unknown_keys_and_wrong_values_are_told_together_each_on_a_line(lab):
    trainer = {"early_stp": 3, "epochs": "ten", "log_step": 0, "amp": "bf17"}
    config = toy.config(lab.saved, optimzer={}, seed=-1, trainer=trainer)
    assert_refused(
        lab,
        lab.train(config),
        ["config.json: optimzer: ", "'optimizer'"],
        ["config.json: trainer.early_stp: ", "'early_stop'"],
        ["config.json: seed: -1", ">= 0"],
        ['config.json: trainer.epochs: "ten"', "whole number"],
        ["config.json: trainer.log_step: 0", ">= 1"],
        ["config.json: trainer.amp: no 'bf17'", "'bf16'"],
    )


def test_wrong_item_of_a_list_or_of_named_objects_is_told_by_its_own_path(lab):
    config = toy.config(lab.saved, metrics=["accuracy", 3], valid_data_loader={"near": toy.rows(3), "far": 5})
    wanted = 'where a name or {"type": name, "args": {}} is wanted'
    lines = ["config.json: metrics.1: 3 " + wanted], ["config.json: valid_data_loader.far: 5 " + wanted]
    assert_refused(lab, lab.train(config), *lines)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("max_steps", 2**63, "a whole number"),
        ("max_steps", 10**400, "a whole number"),
        ("min_delta", 1e300, "a number"),
        ("min_delta", 10**400, "a number"),
    ],
)
def test_number_that_no_machine_word_holds_is_refused(lab, name, value, kind):
    done = lab.train(toy.config(lab.saved, trainer={name: value}))
    assert_refused(lab, done, [f"config.json: trainer.{name}: 1" if value != 2**63 else f"{name}: {2**63}", kind])


@pytest.mark.parametrize("section", ["optimizer", "valid_data_loader"])
def test_name_of_one_of_several_objects_that_holds_a_dot_is_refused(lab, section):
    """It would be read as two names of a path."""
    done = lab.train(toy.config(lab.saved, lr_scheduler=None, **{section: {"a.b": {"type": "SGD"}}}))
    assert_refused(lab, done, [f"config.json: {section}: ", "{name without dots: object}"])


def test_name_that_is_nearly_a_word_of_an_object_is_a_name_where_objects_are_named(lab):
    sets = {"source": toy.rows(3), "target": toy.rows(3, [7.0, 7.0, 7.0])}
    trainer = {"epochs": 1, "monitor": "min val_target_loss"}
    done = lab.train(toy.config(lab.saved, loss="toy.mean_target", valid_data_loader=sets, trainer=trainer))
    assert done.code == 0, done.err
    (line,) = history(lab.run)
    assert (line["val_source_loss"], line["val_target_loss"]) == (1, 7)


def test_schedule_of_an_optimizer_that_is_not_there_names_the_nearest(lab):
    optimizers = {"first": {"type": "SGD", "params": "w"}, "last": {"type": "SGD"}}
    schedules = {"fist": {"type": "ExponentialLR", "args": {"gamma": 0.5}}}
    done = lab.train(toy.config(lab.saved, optimizer=optimizers, lr_scheduler=schedules))
    assert_refused(lab, done, ["config.json: lr_scheduler.fist: no such optimizer", "'first'"])


@pytest.mark.parametrize(
    ("source", "advice"),
    [("daat_loader.x", "Did you mean 'data_loader'?"), ("weather.x", "There is data_loader, valid_data_loader.")],
)
def test_value_from_a_section_that_is_not_made_before_names_those_that_are(lab, source, advice):
    done = lab.train(toy.config(lab.saved), f'arch.args.steps={{"from": "{source}"}}')
    section = source.partition(".")[0]
    assert_refused(
        lab, done, [f"command line: arch.args.steps: '{source}': {section} is not made before this. {advice}"]
    )


@pytest.mark.parametrize(
    ("kind", "args", "name", "wanted"),
    [
        ("torch.nn.Linear", {"in_features": "ten", "out_features": 1}, "in_features", "a whole number"),
        ("torch.nn.Dropout", {"p": "0.5"}, "p", "a number"),
        ("torch.nn.Linear", {"in_features": 1, "out_features": 1, "bias": "false"}, "bias", "true or false"),
    ],
)
def test_text_for_an_argument_that_is_a_number_or_a_switch_is_refused(lab, kind, args, name, wanted):
    done = lab.train(toy.config(lab.saved, arch={"type": kind, "args": args}))
    assert_refused(lab, done, [f'config.json: arch.args.{name}: "{args[name]}" where {wanted} is wanted.'])


def test_text_for_an_argument_that_may_be_text_is_let_through(lab):
    args = {"in_channels": 1, "out_channels": 1, "kernel_size": 3, "padding": "same", "padding_mode": "reflect"}
    assert lab.train(toy.config(lab.saved, arch={"type": "torch.nn.Conv2d", "args": args}), "--check").code == 0


def test_model_of_lazy_layers_is_refused(lab):
    """Its weights have no size before the first batch, and an optimizer of none moves none."""
    done = lab.train(toy.config(lab.saved, arch={"type": "torch.nn.LazyLinear", "args": {"out_features": 1}}))
    assert_refused(lab, done, ["config.json: arch: lazy layers", "sizes"])


@pytest.mark.parametrize(
    ("section", "wanted"),
    [
        ("arch", "Module"),
        ("data_loader", "BaseDataLoader"),
        ("optimizer", "Optimizer"),
        ("lr_scheduler", "LRScheduler"),
    ],
)
def test_function_that_gives_something_else_than_its_section_wants_is_refused(lab, section, wanted):
    done = lab.train(toy.config(lab.saved, **{section: {"type": "builtins.print"}}))
    assert done.code == 2 and f"config.json: {section}: a {wanted} is wanted, and this gave a NoneType." in done.err
    assert files_of(lab) == ["experiment"]


def test_wrong_names_and_arguments_are_told_together_each_on_a_line(lab):
    config = toy.config(
        lab.saved,
        arch={"type": "toy.Scripted", "args": {"script": [1], "stps": 2}},
        data_loader=toy.rows(8, batch_sise=4),
        optimizer={"type": "Adamm", "args": {"lr": 1}},
        lr_scheduler={"type": "StepLR", "args": {"step_size": 2, "gama": 0.1}},
        loss="toy.mean_outt",
        metrics=["acuracy", "accuracy", "top_k_acuracy"],
        trainer={"type": "Traner"},
    )
    assert_refused(
        lab,
        lab.train(config),
        ["config.json: data_loader.args.batch_sise: ", "'batch_size'"],
        ["config.json: arch.args.stps: ", "Scripted", "'steps'"],
        ["config.json: loss.type: ", "'mean_outt'", "'mean_out'"],
        ["config.json: metrics.0.type: ", "'acuracy'", "'accuracy'"],
        ["config.json: metrics.2.type: ", "'top_k_acuracy'"],
        ["config.json: optimizer.type: ", "'Adamm'", "'Adam'"],
        ["config.json: lr_scheduler.args.gama: ", "'gamma'"],
        ["config.json: trainer.type: ", "'Traner'", "'Trainer'"],
    )


def test_each_argument_that_lacks_is_named(lab):
    config = toy.config(lab.saved, arch="toy.Scripted", data_loader="DataLoader")
    assert_refused(
        lab,
        lab.train(config),
        ["config.json: data_loader.args.dataset: missing"],
        ["config.json: arch.args.script: missing", "Scripted"],
        ["config.json: arch.args.steps: missing", "Scripted"],
    )


def test_misspelt_argument_of_an_object_inside_another_is_named_by_its_whole_path(lab):
    dataset = {"type": "toy.Rows", "args": {"valus": [1.0]}}
    config = toy.config(lab.saved, data_loader={"type": "DataLoader", "args": {"dataset": dataset}})
    assert_refused(lab, lab.train(config), ["config.json: data_loader.args.dataset.args.valus: ", "Rows", "'values'"])


def test_object_that_is_not_what_its_section_wants_is_refused(lab):
    config = toy.config(lab.saved, arch="toy.Rows", optimizer="torch.nn.Linear", metrics=["toy.Rows"])
    assert_refused(
        lab,
        lab.train(config),
        ["config.json: arch.type: ", "Rows", "torch.nn.Module"],
        ["config.json: metrics.0.type: ", "Rows", "update", "compute"],
        ["config.json: optimizer.type: ", "Linear", "torch.optim.Optimizer"],
    )


def test_set_that_gives_no_batch_under_drop_last_is_refused(lab):
    done = lab.train(toy.config(lab.saved, data_loader=toy.rows(3, batch_size=4, drop_last=True)))
    assert_refused(lab, done, ["config.json: data_loader.args.drop_last: ", "3 samples", "batch_size 4"])


def test_validation_set_that_gives_no_batch_is_refused_by_its_name(lab):
    sets = {"big": toy.rows(8, batch_size=4), "small": toy.rows(3, batch_size=4, drop_last=True)}
    done = lab.train(toy.config(lab.saved, valid_data_loader=sets, trainer={"monitor": "off"}))
    assert_refused(lab, done, ["config.json: valid_data_loader.small.args.drop_last: ", "3 samples"])


def test_monitor_of_what_a_validation_set_does_not_measure_names_the_nearest(lab):
    sets = {"near": toy.rows(3), "far": toy.rows(3)}
    done = lab.train(toy.config(lab.saved, valid_data_loader=sets, trainer={"monitor": "min val_fare_loss"}))
    assert_refused(lab, done, ["config.json: trainer.monitor: ", "'val_fare_loss'", "'val_far_loss'"])


@pytest.mark.parametrize(("interval", "length"), [("epoch", 6), ("step", 12)])
def test_schedule_that_is_too_short_for_the_run_is_refused(lab, interval, length):
    """Six epochs, twelve steps; three of either would end in an error in the midst of the run."""
    schedule = {"type": "OneCycleLR", "args": {"max_lr": 1.0, "total_steps": 3}, "interval": interval}
    done = lab.train(toy.config(lab.saved, lr_scheduler=schedule))
    assert_refused(lab, done, ["config.json: lr_scheduler.args", f"3 {interval}s", f"run of {length}"])


@pytest.mark.parametrize(("interval", "length"), [("epoch", 6), ("step", 12)])
def test_schedule_that_is_as_long_as_the_run_trains(lab, interval, length):
    schedule = {"type": "OneCycleLR", "args": {"max_lr": 1.0, "total_steps": length}, "interval": interval}
    assert lab.train(toy.config(lab.saved, lr_scheduler=schedule)).code == 0


@pytest.mark.parametrize(("kind", "period"), [("StepLR", "step_size"), ("CosineAnnealingLR", "T_max")])
def test_schedule_that_would_divide_by_zero_is_refused(lab, kind, period):
    done = lab.train(toy.config(lab.saved, lr_scheduler={"type": kind, "args": {period: 0}}))
    assert_refused(lab, done, [f"config.json: lr_scheduler.args.{period}: 0", ">= 1"])


def test_optimizer_that_wants_the_loss_again_is_refused_unless_the_loop_is_ones_own(lab):
    config = toy.config(lab.saved, optimizer={"type": "LBFGS", "args": {"lr": 1.0}})
    assert_refused(lab, lab.train(config), ["config.json: optimizer.type: ", "LBFGS", "loop"])
    assert lab.train(config, "--check", "trainer.type=own.Loop").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"modee": "default"}, ["config.json: trainer.compile.modee: ", "'mode'"]),
        ({"mode": "fastest"}, ["config.json: trainer.compile: ", 'mode="fastest"', "reduce-overhead"]),
        ({"backend": "nvc"}, ["config.json: trainer.compile: ", 'backend="nvc"', "list_backends"]),
    ],
)
def test_wrong_argument_of_compile_is_refused(lab, arguments, said):
    assert_refused(lab, lab.train(toy.config(lab.saved, trainer={"compile": arguments})), said)


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"type": "dpp", "args": {}}, ["config.json: parallel.type: ", "'ddp'"]),
        ({"type": "ddp", "args": {"find_unused": True}}, ["parallel.args.find_unused: ", "find_unused_parameters"]),
        (
            {"type": "auto", "args": {"sync_batchnorm": True}},
            ["config.json: parallel.args.sync_batchnorm: auto has no"],
        ),
        ({"type": "fsdp", "args": {"wrapp": ["fc*"]}}, ["config.json: parallel.args.wrapp: ", "'wrap'"]),
        ({"type": "pipeline", "args": {}}, ["config.json: parallel.args.split: missing"]),
        ({"type": "ddp", "timeout_second": 3}, ["config.json: parallel.timeout_second: ", "'timeout_seconds'"]),
    ],
)
def test_wrong_word_about_processes_is_refused_by_one_process_too(lab, parallel, said):
    assert_refused(lab, lab.train(toy.config(lab.saved, parallel=parallel)), said)


RAISES = """
class Raises:
    def __init__(self, size, names=("a", "b")):
        raise LookupError(f"no layer of size {size}")  # here
"""


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"arch": "Net"}, "arch"),
        ({"loss": "Loss"}, "loss"),
        ({"metrics": ["Loss"]}, "metrics.0"),
        ({"data_loader": {"type": "DataLoader", "args": {"dataset": "Raises"}}}, "data_loader.args.dataset"),
        ({"lr_scheduler": "Schedule"}, "lr_scheduler"),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_constructor_that_raises_is_told_by_its_path_its_arguments_and_its_line(lab, module, sections, path):
    (line,) = module(
        "raising",
        f"""from torch import nn
from torch.optim.lr_scheduler import LRScheduler
{RAISES}

class Net(Raises, nn.Module):
    pass


class Loss(Raises):
    def __call__(self, output, target):
        return output.mean()


class Schedule(Raises, LRScheduler):
    def __init__(self, optimizer, size):
        super().__init__(size)
""",
    )

    def spelt_out(value):
        if isinstance(value, str) and value != "DataLoader":
            return {"type": f"raising.{value}", "args": {"size": 512}}
        if isinstance(value, list):
            return [spelt_out(item) for item in value]
        return {name: spelt_out(item) for name, item in value.items()} if isinstance(value, dict) else value

    done = lab.train(toy.config(lab.saved, **spelt_out(sections)))
    said = ["(size=512", "LookupError: no layer of size 512", f"raising.py, line {line}"]
    assert_refused(lab, done, [f"config.json: {path}: ", *said])


def test_error_in_the_first_batch_keeps_its_traceback_and_lists_the_parts(lab, module, capsys):
    """It is no mistake of the config: Python shows the traceback and leaves with 1."""
    (line,) = module("late", "def loss(output, target):\n    return output.mean() / (target[9, 9])  # here\n")
    with pytest.raises(IndexError) as raised:
        lab.train(toy.config(lab.saved, loss="late.loss"))
    assert (raised.traceback[-1].path.name, raised.traceback[-1].lineno + 1) == ("late.py", line)
    told = capsys.readouterr().out
    assert "IndexError in epoch 1, step 1" in told
    parts = dict(line.split(None, 1) for line in told.splitlines() if line.startswith("  "))
    for section, kind in {"arch": "toy.Scripted", "optimizer": "toy.ProbeSGD", "loss": "late.loss"}.items():
        assert f'"{kind}"' in parts[section]


# --- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "place", "nearest"),
    [
        ("trainer.epoch=2", "trainer.epoch", "'epochs'"),
        ("optimizer.arg.lr=2", "optimizer.arg", "'args'"),
        ("optimizer.args.lrr=0.1", "optimizer.args.lrr", "'lr'"),
        ("arch.args.stepss=2", "arch.args.stepss", "'steps'"),
        ("data_loader.args.dataset.args.valus=[1]", "data_loader.args.dataset.args.valus", "'values'"),
        ("optimizer.type=Adamm", "optimizer.type", "'Adam'"),
        ("loss=toy.mean_outt", "loss.type", "'mean_out'"),
        ('metrics=["acuracy"]', "metrics.0.type", "'accuracy'"),
        ("trainer.monitor=min val_los", "trainer.monitor", "'val_loss'"),
    ],
)
def test_mistake_of_the_command_line_is_told_there(lab, override, place, nearest):
    done = lab.train(toy.config(lab.saved), override)
    assert_refused(lab, done, [f"command line: {place}: ", nearest])


def test_argument_that_an_override_lost_is_told_on_the_command_line(lab):
    done = lab.train(toy.config(lab.saved), 'arch.args={"script": [1]}')
    assert_refused(lab, done, ["command line: arch.args.steps: missing"])


def test_override_replaces_a_list_of_objects(lab):
    metrics = 'metrics=["toy.squared", {"type": "toy.mean_out", "name": "m"}]'
    lab.train(toy.config(lab.saved, metrics=["toy.mean_target"]), metrics, "trainer.epochs=1")
    (line,) = history(lab.run)
    assert (line["val_m"], line["val_squared"]) == (3, pytest.approx((9 + 4 + 1) / 3))
    assert "val_mean_target" not in line


def test_override_changes_one_item_of_a_list(lab):
    lab.train(toy.config(lab.saved), "arch.args.script.1=7", "trainer.epochs=3")
    assert [line["val_loss"] for line in history(lab.run)] == [3, 7, 1]


def test_override_of_an_item_that_a_list_does_not_have_is_refused(lab):
    done = lab.train(toy.config(lab.saved), "arch.args.script.6=7")
    assert_refused(lab, done, ["command line: arch.args.script.6: ", "6 items"])


def test_override_of_an_item_reaches_the_model_that_is_built(lab, module):
    code = "from torch import nn\n\n\ndef net(layers):\n    first, last = layers\n"
    module("layered", code + "    return nn.Sequential(nn.Linear(1, first), nn.Linear(first, last))\n")
    config = toy.config(lab.saved, arch={"type": "layered.net", "args": {"layers": [32, 1]}}, loss="toy.squared")
    assert lab.train(config, "arch.args.layers.0=64", "trainer.epochs=1", "--lr", "1e-5").code == 0
    shapes = {name: tuple(value.shape) for name, value in load(lab.run / "latest.pth")["state_dict"].items()}
    assert shapes == {"0.weight": (64, 1), "0.bias": (64,), "1.weight": (1, 64), "1.bias": (1,)}


def test_override_of_a_nested_value_leaves_those_beside_it(lab):
    lab.train(toy.config(lab.saved), "data_loader.args.dataset.args.n=4", "arch.args.steps=1", "trainer.epochs=1")
    assert sorted(lab.probe("x")[0]) == [0, 1, 2, 3]
    saved, given = json.loads((lab.run / "config.json").read_text()), toy.config(lab.saved)
    assert saved["data_loader"]["args"]["batch_size"] == 4
    assert saved["arch"]["args"] == {**given["arch"]["args"], "steps": 1}


# --- --check ---------------------------------------------------------------------------------------------------------


def test_check_shows_what_set_each_value(lab):
    parent = toy.config(lab.saved, extra={"note": "from below"})
    lab.write(parent, "parent.json")
    child = {"extends": "parent.json", "seed": 7, "optimizer": {"args": {"lr": 0.25}}}
    done = lab.train(child, "--check", "trainer.epochs=2", "--lr", "0.5")
    shown = origins(done)
    assert done.code == 0 and done.err == ""
    assert shown["seed"] == ("7", "config.json")
    assert shown["name"] == ('"toy"', "parent.json") and shown["loss.type"] == ('"toy.mean_out"', "parent.json")
    assert shown["arch.args.script.3"] == ("1.5", "parent.json")
    assert shown["extra.note"] == ('"from below"', "parent.json")
    assert shown["optimizer.args.lr"] == ("0.5", "command line") and shown["trainer.epochs"] == ("2", "command line")
    assert shown["trainer.accumulate"] == ("1", "default") and shown["deterministic"] == ("false", "default")
    assert "extends" not in shown


def test_check_without_overrides_shows_the_value_of_the_child(lab):
    lab.write(toy.config(lab.saved), "parent.json")
    done = lab.train({"extends": "parent.json", "optimizer": {"args": {"lr": 0.25}}}, "--check")
    assert origins(done)["optimizer.args.lr"] == ("0.25", "config.json")
    assert origins(done)["optimizer.type"] == ('"toy.ProbeSGD"', "parent.json")


@pytest.mark.parametrize("by", ["child", "command line"])
def test_check_shows_what_replaced_a_whole_section(lab, by):
    """The old values under it are gone, and so is what set them."""
    objects = {"loss": {"type": "toy.mean_out", "args": {}}, "metrics": [{"type": "toy.mean_out", "name": "m"}]}
    lab.write(toy.config(lab.saved, **objects), "parent.json")
    changed = {"loss": "toy.squared", "metrics": ["toy.squared"]}
    words = [f"{name}={json.dumps(value)}" for name, value in changed.items()]
    child = {"extends": "parent.json", **(changed if by == "child" else {})}
    shown = origins(lab.train(child, "--check", *(words if by == "command line" else [])))
    source = "config.json" if by == "child" else by
    assert shown["loss.type"] == shown["metrics.0.type"] == ('"toy.squared"', source)


NOTES = """
import torch
from toy import Rows, say
from trainer.trainer import Trainer


class Made:
    def __init__(self, *args, **kwargs):
        say(made=type(self).__name__)
        super().__init__(*args, **kwargs)


class Set(Made, Rows):
    pass


class Net(Made, torch.nn.Linear):
    pass


class Loss(Made, torch.nn.MSELoss):
    pass


class Sgd(Made, torch.optim.SGD):
    pass


class Schedule(Made, torch.optim.lr_scheduler.StepLR):
    pass


class Own(Made, Trainer):
    pass
"""


def test_check_constructs_nothing_and_writes_nothing(lab, module):
    module("noting", NOTES)
    dataset = {"type": "noting.Set", "args": {"n": 8}}
    config = toy.config(
        lab.saved,
        arch={"type": "noting.Net", "args": {"in_features": 1, "out_features": 1}},
        data_loader={"type": "DataLoader", "args": {"dataset": dataset}},
        valid_data_loader=None,
        optimizer={"type": "noting.Sgd", "args": {"lr": 0.001}},
        lr_scheduler={"type": "noting.Schedule", "args": {"step_size": 1}},
        loss="noting.Loss",
        trainer={"type": "noting.Own", "monitor": "off", "tensorboard": True},
    )
    assert lab.train(config, "--check").code == 0
    assert files_of(lab) == ["experiment"] and lab.probe("made") == []
    assert lab.train(config, "trainer.epochs=1").code == 0
    assert lab.probe("made") == ["Set", "Net", "Loss", "Sgd", "Schedule", "Own"]


@pytest.mark.parametrize("words", [(), ("--check",)], ids=["train", "check"])
def test_check_refuses_what_training_refuses(lab, words):
    done = lab.train(toy.config(lab.saved, trainer={"monitor": "min val_los"}), *words)
    assert_refused(lab, done, ["config.json: trainer.monitor: ", "'val_loss'"])


def test_check_of_an_evaluation_shows_the_checkpoints_values_and_writes_nothing(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    lab.forget()
    before = sorted(path.name for path in lab.run.iterdir())
    done = lab.test(lab.run / "latest.pth", "--check", "trainer.amp=bf16")
    shown = origins(done)
    assert done.code == 0 and done.numbers is None
    assert shown["optimizer.args.lr"] == ("1.0", "latest.pth") and shown["trainer.amp"] == ('"bf16"', "command line")
    assert sorted(path.name for path in lab.run.iterdir()) == before and lab.probe("x") == []


def test_check_with_a_checkpoint_shows_which_sections_a_given_config_replaced(lab):
    """Such a section takes nothing from the checkpoint: what it leaves out is the default."""
    lab.train(toy.config(lab.saved, trainer={"accumulate": 2}), "trainer.epochs=1")
    given = {"seed": 7, "trainer": {"epochs": 3}}
    shown = origins(lab.test(lab.run / "latest.pth", "--check", config=given))
    assert shown["seed"] == ("7", "config.json") and shown["trainer.epochs"] == ("3", "config.json")
    assert shown["trainer.accumulate"] == ("1", "default")
    assert shown["optimizer.args.lr"] == ("1.0", "latest.pth")


def test_check_of_an_evaluation_refuses_what_is_wrong(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    done = lab.test(lab.run / "latest.pth", "--check", "loss=toy.mean_outt")
    assert done.code == 2 and done.out == ""
    assert done.err.splitlines() == ["command line: loss.type: no 'mean_outt' in toy. Did you mean 'mean_out'?"]


# --- extends ---------------------------------------------------------------------------------------------------------


def child_and_parent(lab):
    """A child's path; it halves the rate and drops the schedule of a parent that lies in a folder below its own.

    A file of the parent's name that lies where one stands is nonsense.
    """
    for folder, content in ((lab.folder, toy.config(lab.saved)), (lab.folder.parent, {"nonsense": 1})):
        (folder / "parents").mkdir()
        (folder / "parents" / "base.json").write_text(json.dumps(content), encoding="utf-8")
    child = {"extends": "parents/base.json", "optimizer": {"args": {"lr": 0.5}}, "lr_scheduler": None}
    return lab.write(child, "child.json")


def test_child_config_trains_with_its_parent_relative_to_its_own_file(lab):
    assert lab.train(child_and_parent(lab), "trainer.epochs=3").code == 0
    assert lab.probe("lr") == [0.5] * 6
    assert [line["val_loss"] for line in history(lab.run)] == [3, 2, 1]


def test_saved_config_of_a_child_stands_alone_and_repeats_the_run(lab):
    lab.train(child_and_parent(lab), "--run-id", "first")
    saved = json.loads((lab.saved / "toy/first/config.json").read_text())
    assert "extends" not in saved and saved["name"] == "toy" and not saved.get("lr_scheduler")
    shutil.copy(lab.saved / "toy/first/config.json", lab.folder / "again.json")
    shutil.rmtree(lab.folder / "parents")
    assert lab.train(lab.folder / "again.json", "--run-id", "again").code == 0
    assert history(lab.saved / "toy/first") == history(lab.saved / "toy/again")


def test_mistake_in_a_parent_is_told_by_its_file(lab):
    lab.write(toy.config(lab.saved, trainer={"early_stp": 3}), "parent.json")
    done = lab.train({"extends": "parent.json", "sed": 1})
    assert_refused(lab, done, ["parent.json: trainer.early_stp: ", "'early_stop'"], ["config.json: sed: ", "'seed'"])


@pytest.mark.parametrize("value", [5, [1], {"a": 1}, [], {}], ids=str)
def test_misspelt_argument_in_a_parent_is_told_by_its_file_whatever_its_value(lab, value):
    lab.write(toy.config(lab.saved, optimizer={"type": "SGD", "args": {"lrr": value}}), "parent.json")
    done = lab.train({"extends": "parent.json", "optimizer": {"args": {"momentum": 0.5}}})
    assert_refused(lab, done, ["parent.json: optimizer.args.lrr: ", "'lr'"])


def test_parent_that_is_not_there_is_named_by_its_whole_path(lab):
    done = lab.train({"extends": "nowhere.json"})
    assert_refused(lab, done, ["config.json: extends: ", str(lab.folder / "nowhere.json"), "relative to this one"])


def test_child_config_goes_on_from_a_checkpoint(lab):
    """With -r and -c the sections of the child, its parent's among them, replace the saved ones."""
    path = child_and_parent(lab)
    lab.train(path, "trainer.epochs=2")
    lab.forget()
    assert lab.train(path, "-r", lab.run / "latest.pth", "trainer.epochs=3", "optimizer.args.lr=0.125").code == 0
    assert lab.probe("lr") == [0.125] * 2


# --- files -----------------------------------------------------------------------------------------------------------


YAML = """name: no
seed: 1
n_gpu: 0
arch: {type: toy.Scripted, args: {script: [3, 2.5, 1e0], steps: 2}}
data_loader:
  type: DataLoader
  args:
    dataset: {type: toy.Rows, args: {n: 8}}
    batch_size: 4
optimizer:
  type: toy.ProbeSGD
  args: {lr: 1e-3, momentum: 1.5E-1, nesterov: false}
loss: toy.mean_out
metrics: []
lr_scheduler: null
trainer: {epochs: 1, save_dir: SAVED, tensorboard: false}
extra: {answer: no, switch: on, time: "12:30", größe: [1e-3, -2E+2, 0x, true, ~]}
"""
SAME = {
    "name": "no",
    "seed": 1,
    "n_gpu": 0,
    "arch": {"type": "toy.Scripted", "args": {"script": [3, 2.5, 1.0], "steps": 2}},
    "data_loader": {"type": "DataLoader", "args": {"dataset": {"type": "toy.Rows", "args": {"n": 8}}, "batch_size": 4}},
    "optimizer": {"type": "toy.ProbeSGD", "args": {"lr": 0.001, "momentum": 0.15, "nesterov": False}},
    "loss": "toy.mean_out",
    "metrics": [],
    "lr_scheduler": None,
    "trainer": {"epochs": 1, "save_dir": "SAVED", "tensorboard": False},
    "extra": {"answer": "no", "switch": "on", "time": "12:30", "größe": [0.001, -200.0, "0x", True, None]},
}


def as_table(lab, name, content):
    """What --check shows of a file with these bytes, but for the file's name."""
    path = lab.folder / name
    path.write_bytes(content)
    done = lab.train(path, "--check", f"trainer.save_dir={lab.saved}")
    assert done.code == 0, done.err
    return done.out.replace(name, "FILE")


@pytest.mark.parametrize("name", ["same.yaml", "same.yml"])
def test_yaml_and_json_give_the_same_config(lab, name):
    told = as_table(lab, "same.json", json.dumps(SAME).encode())
    assert as_table(lab, name, YAML.encode()) == told
    assert "0.001" in told and '"no"' in told


def test_yaml_merge_key_gives_what_it_names_where_nothing_else_is_given(lab):
    merged = (
        "data_loader: &rows\n  type: DataLoader\n  args: {dataset: {type: toy.Rows, args: {n: 8}}, batch_size: 4}\n"
    )
    head, _, tail = YAML.partition("data_loader:")
    text = (
        head + merged + "valid_data_loader: {<<: *rows, type: toy.Other}\noptimizer:" + tail.partition("optimizer:")[2]
    )
    path = lab.write(text, "a.yaml")
    assert config_file.read(path) == SAME | {"valid_data_loader": {**SAME["data_loader"], "type": "toy.Other"}}


@pytest.mark.parametrize("value", ["!!bool x", "!!int x", "!!timestamp x", "!!python/name:os.system x"])
def test_yaml_value_that_its_tag_or_json_does_not_know_is_refused(lab, value):
    path = lab.write(YAML.replace("seed: 1", f"seed: {value}"), "a.yaml")
    assert_refused(lab, lab.train(path), [f"{path}: "])


@pytest.mark.parametrize("name", ["same.yaml", "same.json"])
def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(lab, name):
    text = YAML if name.endswith("yaml") else json.dumps(SAME, indent=4, ensure_ascii=False)
    plain = as_table(lab, name, text.encode())
    assert as_table(lab, name, text.replace("\n", "\r\n").encode("utf-8-sig")) == plain


def test_yaml_config_trains_as_the_json_one(lab):
    lab.write(YAML.replace("SAVED", json.dumps(str(lab.saved))).replace("name: no", "name: a"), "a.yaml")
    lab.write({**SAME, "name": "b", "trainer": {**SAME["trainer"], "save_dir": str(lab.saved)}}, "b.json")
    for name in ("a.yaml", "b.json"):
        assert lab.train(lab.folder / name, "--run-id", "run").code == 0
    saved = [json.loads((lab.saved / name / "run/config.json").read_text()) for name in "ab"]
    assert {**saved[0], "name": ""} == {**saved[1], "name": ""}
    assert lab.probe("lr") == [0.001] * 4


def with_odd_names(lab):
    """(a config's path, a folder for runs, overrides): spaces, equals signs and letters beyond ASCII in all of them."""
    saved = lab.folder.parent / "läufe = hier"
    lab.write(toy.config(lab.saved, extra={}), "über = allen.json")
    path = lab.write({"extends": "über = allen.json", "name": "größe = 3 µ"}, "mein versuch = é.json")
    return path, saved, (f"trainer.save_dir={saved}", "extra.notiz=a = b ü", "trainer.epochs=1")


def test_spaces_equals_signs_and_umlauts_may_stand_in_names_and_values(lab):
    path, saved, words = with_odd_names(lab)
    done = lab.train(path, *words)
    assert done.code == 0, done.err
    (run,) = (saved / "größe = 3 µ").iterdir()
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert (config["name"], config["extra"]["notiz"]) == ("größe = 3 µ", "a = b ü")
    assert config["trainer"]["save_dir"] == str(saved)
    (advice,) = [line for line in done.out.splitlines() if line.startswith("test it")]
    *_, checkpoint = shlex.split(advice)
    assert lab.test(checkpoint).numbers == {"val_loss": 3.0}
    assert lab.resume(run, "trainer.epochs=2").code == 0
    assert lab.train(path, *words, "--check").out.count("mein versuch = é.json") == 1  # the name


def test_mistake_in_a_file_with_an_odd_name_is_told_by_that_name(lab):
    path, _, words = with_odd_names(lab)
    done = lab.train(path, *words, "loss=toy.größe")
    assert_refused(lab, done, ["command line: loss.type: no 'größe' in toy"])
    path.write_text('{"extends": "über = allen.json", "näme": 1}', encoding="utf-8")
    assert_refused(lab, lab.train(path, *words), ["mein versuch = é.json: näme: ", "'name'"])


@pytest.mark.slow
def test_plain_c_locale_reads_and_writes_every_letter(lab, checkout, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    path, saved, words = with_odd_names(lab)
    done = checkout.run("train.py", "-c", path, *words, "--run-id", "läuft")
    assert done.code == 0, done.err
    run = saved / "größe = 3 µ" / "läuft"
    assert json.loads((run / "config.json").read_text(encoding="utf-8"))["extra"]["notiz"] == "a = b ü"
    assert str(run) in (run / "train.log").read_text(encoding="utf-8")
    assert str(run) in done.out


# --- a script of one's own -------------------------------------------------------------------------------------------


@pytest.fixture
def script(lab, monkeypatch, capsys):
    """A fork's own script, which knows -c, -r and -d alone: (exit code, its config, what it printed)."""

    def command(config, *words):
        lab.as_in_a_new_process()
        made = argparse.ArgumentParser()
        for flags in (("-c", "--config"), ("-r", "--resume"), ("-d", "--device")):
            made.add_argument(*flags, default=None, type=str)
        monkeypatch.setattr(sys, "argv", ["mine.py", "-c", str(lab.write(config)), *words])
        configs = []
        with monkeypatch.context() as changed:
            changed.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            options = [(["--lr"], float, "optimizer;args;lr")]
            code = exit_code(lambda: configs.append(ConfigParser.from_args(made, options)))
        return code, configs[0], capsys.readouterr()

    return command


def test_script_of_ones_own_is_refused_no_key_and_warned_of_a_misspelt_one(lab, script):
    config = toy.config(lab.saved, visualize={"grid": 4}, trainer={"early_stp": 3, "tensorboardX": True, "mixup": 1})
    del config["trainer"]["early_stop"]
    code, made, told = script(config, "--lr", "0.5")
    assert code == 0 and made["visualize"] == {"grid": 4} and made["trainer"]["mixup"] == 1
    assert made["optimizer"]["args"]["lr"] == 0.5
    (line,) = (told.out + told.err).splitlines()
    assert "warning" in line and "config.json: trainer.early_stp" in line and "'early_stop'" in line


def test_script_of_ones_own_with_right_keys_is_told_nothing(lab, script):
    code, _, told = script(toy.config(lab.saved))
    assert (code, told.out, told.err) == (0, "", "")


def test_our_own_scripts_tell_a_misspelt_key_once(lab):
    config = toy.config(lab.saved, trainer={"early_stp": 3})
    del config["trainer"]["early_stop"]
    done = lab.train(config)
    assert done.code == 2 and (done.out + done.err).count("early_stp") == 1


# --- --overfit -------------------------------------------------------------------------------------------------------

PROBING = """
from toy import say
from torch import nn


class Line(nn.Linear):
    \"\"\"Notes what it is given; its input is scaled so that a plain SGD fits it.\"\"\"

    def __init__(self):
        super().__init__(1, 1)

    def forward(self, x):
        say(train=self.training, x=x.flatten().tolist())
        return super().forward(x / 10)
"""


@pytest.fixture
def overfit(lab, module):
    """Train on 20 rows for three epochs: the rows of each epoch's batches, ([training], [validation])."""
    module("probing", PROBING)

    def run(*words, **sections):
        lab.forget()
        shutil.rmtree(lab.saved, ignore_errors=True)
        given = {
            "arch": "probing.Line",
            "loss": "toy.squared",
            "data_loader": toy.rows(20, batch_size=4, shuffle=True),
            "valid_data_loader": toy.rows(7, batch_size=5),
            "lr_scheduler": None,
            "optimizer": {"type": "SGD", "args": {"lr": 0.1}},
        }
        trainer = {"epochs": 3, "save_period": 1} | sections.pop("trainer", {})
        done = lab.train(toy.config(lab.saved, **given | sections, trainer=trainer), *words)
        assert done.code == 0, done.err
        return batches_of_epochs(lab)

    return run


def batches_of_epochs(lab):
    """([[rows of a batch]…] of each epoch's training, the same of each epoch's validation)."""
    epochs, training = ([], []), None
    for train, x in zip(lab.probe("train"), lab.probe("x")):
        kind = epochs[0] if train else epochs[1]
        if train != training:
            kind.append([])
        kind[-1].append(x)
        training = train
    return epochs


def rows_of(batches):
    return sorted(row for batch in batches for row in batch)


def test_overfit_trains_and_validates_on_the_same_batches_in_every_epoch(lab, overfit):
    training, validation = overfit("--overfit", "2")
    assert [len(batch) for batch in training[0]] == [4, 4] and len(set(rows_of(training[0]))) == 8
    assert training == validation == [training[0]] * 3


def test_overfit_takes_the_first_batches_that_the_run_would_train_on(lab, overfit):
    ordinary, _ = overfit()
    assert overfit("--overfit", "2")[0][0] == ordinary[0][:2]


def test_overfit_is_a_key_of_the_config_too(lab, overfit):
    assert overfit(trainer={"overfit": 2}) == overfit("--overfit", "2")


@FORKS
@pytest.mark.parametrize("persistent", [False, True], ids=["workers", "persistent workers"])
def test_overfit_takes_the_same_rows_from_workers(lab, overfit, persistent):
    args = {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": persistent}
    assert overfit("--overfit", "2", data_loader=toy.rows(20, **args)) == overfit("--overfit", "2")


@FORKS
def test_overfit_validates_inside_an_epoch_beside_workers_that_persist(lab, overfit):
    """Training goes on with its second batch after a validation on both, which reads them by workers of its own."""
    args = {"batch_size": 4, "shuffle": True, "num_workers": 1, "persistent_workers": True}
    inside = {"valid_steps": 1, "epochs": 1}
    training, validation = overfit("--overfit", "2", data_loader=toy.rows(20, **args), trainer=inside)
    assert validation == [[*training[0], *training[1]]] * 2 and len(rows_of(validation[0])) == 8


def test_overfit_reads_the_first_batches_of_a_stream(lab, overfit):
    dataset = {"type": "toy.Stream", "args": {"n": 20}}
    data = {"type": "DataLoader", "args": {"dataset": dataset, "batch_size": 4}}
    training, validation = overfit("--overfit", "2", data_loader=data)
    assert training == validation == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 3


def test_overfit_takes_training_rows_where_a_part_is_split_off(lab, overfit):
    data = toy.rows(20, batch_size=4, shuffle=True, validation_split=0.3)
    _, split_off = overfit(data_loader=data, valid_data_loader=None)
    training, validation = overfit("--overfit", "2", data_loader=data, valid_data_loader=None)
    assert training == validation == [training[0]] * 3
    assert len(rows_of(training[0])) == 8 and not set(rows_of(training[0])) & set(rows_of(split_off[0]))


def test_overfit_on_more_batches_than_there_are_takes_them_all(lab, overfit):
    training, validation = overfit("--overfit", "99")
    assert [rows_of(epoch) for epoch in training + validation] == [list(range(20))] * 6


def test_overfit_repeats_its_batches_up_to_the_length_of_an_epoch(lab, overfit):
    training, _ = overfit("--overfit", "2", trainer={"len_epoch": 6})
    assert all(epoch == epoch[:2] * 3 for epoch in training) and training[0] == training[2]


def test_overfit_lets_the_loss_fall_on_its_batches(lab, overfit):
    """Of a line through y = x: what is left of the error after 60 epochs is less than a thousandth."""
    overfit("--overfit", "1", "--lr", "0.5", trainer={"epochs": 60, "keep_last": 1})
    first, *_, last = history(lab.run)
    assert last["loss"] < first["loss"] / 1000 and last["val_loss"] < first["val_loss"] / 1000
    ends = [load(lab.run / "latest.pth")["state_dict"][name].item() for name in ("weight", "bias")]
    (batch,) = batches_of_epochs(lab)[1][-1]
    assert last["val_loss"] == pytest.approx(sum((ends[0] * x / 10 + ends[1] - x) ** 2 for x in batch) / 4, rel=1e-3)


def test_overfit_measures_what_the_check_lets_it_monitor(lab, overfit):
    """Several named sets keep their names, and each is the training batches."""
    sets = {"a": toy.rows(3), "b": toy.rows(5)}
    overfit("--overfit", "1", valid_data_loader=sets, trainer={"monitor": "min val_b_loss"})
    assert all(line["val_a_loss"] == line["val_b_loss"] for line in history(lab.run))
    assert (lab.run / "model_best.pth").exists()


def test_overfit_of_no_batch_is_refused(lab):
    done = lab.train(toy.config(lab.saved), "--overfit", "0")
    assert_refused(lab, done, ["command line: trainer.overfit: 0", ">= 1"])


# --- what a new user met ----------------------------------------------------------------------------------------------


def test_module_beside_an_extended_config_is_found_from_another_folder(lab, module):
    module("beside_the_parent", "from toy import Scripted\n")
    config = toy.config(lab.saved)
    config["arch"] = {**config["arch"], "type": "beside_the_parent.Scripted"}
    lab.write(config, "parent.json")
    child = lab.folder.parent / "elsewhere"
    child.mkdir()
    (child / "child.json").write_text('{"extends": "../experiment/parent.json"}', encoding="utf-8")
    done = lab.train(child / "child.json")
    assert done.code == 0, done.err
    assert lab.resume(lab.run).code == 0


def test_run_on_a_few_batches_has_a_folder_of_its_own_and_no_run_goes_on_from_it(lab):
    config = toy.config(lab.saved)
    assert lab.train(config, "--overfit", "1").code == 0
    assert [folder.parent.name for folder in lab.runs()] == [f"{config['name']}-overfit"]
    assert lab.train(config, "-r", "auto").code == 0
    (real,) = lab.runs(config["name"])
    done = lab.resume(real, "--overfit", "1", "trainer.epochs=9")
    assert done.code == 2 and "trainer.overfit: null → 1" in done.err


def test_bare_name_that_is_at_home_elsewhere_is_found_there(lab):
    done = lab.train(toy.config(lab.saved, loss="CrossEntropyLoss"))
    assert_refused(lab, done, ["loss.type: no 'CrossEntropyLoss'", "Did you mean 'torch.nn.CrossEntropyLoss'?"])


@pytest.mark.parametrize(
    ("override", "meant"),
    [("optimiser.args.lr=1", "optimizer"), ("trainer.epoch=3", "epochs"), ("sed=2", "seed"), ("arch.arg.x=1", "args")],
)
def test_misspelt_override_is_refused_with_the_nearest_name(lab, override, meant):
    done = lab.train(toy.config(lab.saved), override)
    path = override.partition("=")[0].removesuffix(".args.lr").removesuffix(".x")
    assert_refused(lab, done, [f"command line: {path}: unknown. Did you mean '{meant}'?"])


def test_shorthand_with_several_optimizers_asks_for_which(lab):
    optimizers = {"a": {"type": "SGD", "params": "*"}, "b": {"type": "SGD", "params": "*"}}
    done = lab.train(toy.config(lab.saved, optimizer=optimizers), "--lr", "0.1")
    assert_refused(lab, done, ["command line: optimizer.args: which of a, b?"])


def test_rooms_own_module_that_can_not_be_imported_is_told_as_a_users_is(lab, module, monkeypatch):
    module("broken_room", "def broken(:\n")
    monkeypatch.setitem(description.homes(), "arch", "broken_room")
    done = lab.train(toy.config(lab.saved, arch={"type": "Scripted", "args": {}}))
    assert done.code == 2 and "arch.type: importing 'broken_room' raised SyntaxError" in done.err


def test_dry_run_refuses_a_monitor_that_nothing_measures(lab, module):
    module("own_numbers", "from trainer import Trainer\n\n\nclass Own(Trainer):\n    def _train_epoch(self, epoch):\n"
           "        return super()._train_epoch(epoch)\n")  # fmt: skip
    trainer = {"type": "own_numbers.Own", "monitor": "min vall_loss"}
    done = lab.train(toy.config(lab.saved, trainer=trainer), "--dry-run")
    assert done.code == 2 and "trainer.monitor: nothing measured 'vall_loss'; there is loss" in done.err


@pytest.mark.slow
def test_reader_that_goes_away_ends_a_command_without_a_traceback(checkout):
    process = checkout.start("train.py", "-c", "config.json", "--check")
    process.stdout.close()
    assert process.wait() == 141 and "Traceback" not in process.stderr.read()

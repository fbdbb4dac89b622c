"""The one description of what a config may hold: the check by the config alone, and the defaults."""

import copy
import re
from pathlib import Path

import pytest

from utils import description
from utils.errors import shown

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


def told(config):
    """The problems of a config, a line each."""
    return [f"{path}: {why}" for path, why in description.problems(config)]


def problems(**changes):
    return told({**a_config(), **changes})


def problems_of_trainer(**changes):
    return told(a_config(**changes))


# --- the check ---


def test_a_sound_config_has_no_problem():
    assert told(a_config()) == []


def test_a_complete_config_has_no_problem():
    assert told(description.with_defaults(a_config())) == []


def test_an_unknown_section_is_named_with_the_nearest():
    (line,) = problems(optimiser="SGD")
    assert line == "optimiser: unknown. Did you mean 'optimizer'?"


def test_an_unknown_section_that_is_like_none_is_sent_to_extra():
    assert problems(zzz=1) == ["zzz: unknown. Keys of your own go into 'extra'."]


def test_an_unknown_key_of_the_trainer_is_named_with_the_nearest():
    assert problems_of_trainer(early_stopp=3) == ["trainer.early_stopp: unknown. Did you mean 'early_stop'?"]


def test_an_unknown_key_of_the_trainer_that_is_like_none_is_answered_with_all():
    (line,) = problems_of_trainer(zzz=3)
    assert line.startswith("trainer.zzz: unknown. It accepts type, args, epochs, ") and "save_dir" in line


def test_a_name_in_other_letters_is_answered_with_the_right_ones():
    assert problems(Seed=1) == ["Seed: unknown. Did you mean 'seed'?"]
    assert problems_of_trainer(EPOCHS=1) == ["trainer.EPOCHS: unknown. Did you mean 'epochs'?"]


@pytest.mark.parametrize("missing", ["name", "arch", "data_loader", "optimizer", "loss"])
def test_a_section_that_every_run_needs_is_missed(missing):
    config = a_config()
    del config[missing]
    (line,) = told(config)
    assert line.startswith(f"{missing}: missing.")


def test_a_run_needs_epochs_or_steps():
    assert problems_of_trainer(epochs=None) == ["trainer.epochs: missing. Give epochs, max_steps or both."]
    assert problems_of_trainer(epochs=None, max_steps=5) == []


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed", 1.5, "seed: 1.5 where a whole number is wanted."),
        ("seed", True, "seed: true where a whole number is wanted."),
        ("seed", None, "seed: null where a whole number is wanted."),
        ("deterministic", 1, "deterministic: 1 where true or false is wanted."),
        ("name", 3, "name: 3 where a folder's name, short and without slashes, is wanted."),
        ("n_gpu", "0", 'n_gpu: "0" where a whole number or null is wanted.'),
        (
            "loss",
            ["a"],
            'loss: ["a"] where a name or {"type": name, "args": {}} or {name without dots: object} is wanted.',
        ),
        ("arch", {}, 'arch: {} where a name or {"type": name, "args": {}} is wanted.'),
        ("metrics", "accuracy", 'metrics: "accuracy" where a list of names or objects is wanted.'),
        ("metrics", [3], 'metrics.0: 3 where a name or {"type": name, "args": {}} is wanted.'),
        ("trainer", [], "trainer: [] where {key: value} is wanted."),
    ],
)
def test_a_value_of_another_kind_is_shown_with_what_is_wanted(key, value, said):
    assert problems(**{key: value}) == [said]


@pytest.mark.parametrize("section", ["optimizer", "valid_data_loader", "lr_scheduler"])
def test_several_objects_by_name_are_at_least_one(section):
    (line,) = problems(**{section: {}})
    assert line.startswith(f"{section}: ")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("epochs", "ten", 'trainer.epochs: "ten" where a whole number or null is wanted.'),
        ("clip_grad_norm", "1", 'trainer.clip_grad_norm: "1" where a number or null is wanted.'),
        ("clip_grad_norm", float("nan"), "trainer.clip_grad_norm: NaN where a number or null is wanted."),
        ("clip_grad_norm", float("inf"), "trainer.clip_grad_norm: Infinity where a number or null is wanted."),
        ("tensorboard", "yes", 'trainer.tensorboard: "yes" where true or false is wanted.'),
        (
            "compile",
            "max-autotune",
            'trainer.compile: "max-autotune" where true or false or {argument: value} is wanted.',
        ),
        ("amp", "bf61", "trainer.amp: no 'bf61'. Did you mean 'bf16'?"),
        ("amp", "BF16", "trainer.amp: no 'BF16'. Did you mean 'bf16'?"),
        ("amp", "half", "trainer.amp: no 'half'. It accepts off, bf16, fp16."),
    ],
)
def test_a_trainers_value_that_does_not_do_is_shown_with_what_does(name, value, said):
    assert problems_of_trainer(**{name: value}) == [said]


@pytest.mark.parametrize(
    ("path", "inside", "outside", "said"),
    [
        ("seed", 0, -1, ">= 0"),
        ("n_gpu", 0, -1, ">= 0"),
        ("trainer.epochs", 1, 0, ">= 1"),
        ("trainer.max_steps", 1, 0, ">= 1"),
        ("trainer.len_epoch", 1, 0, ">= 1"),
        ("trainer.save_period", 1, 0, ">= 1"),
        ("trainer.save_steps", 1, 0, ">= 1"),
        ("trainer.keep_last", 0, -1, ">= 0"),
        ("trainer.valid_period", 1, 0, ">= 1"),
        ("trainer.valid_steps", 1, 0, ">= 1"),
        ("trainer.early_stop", 0, -1, ">= 0"),
        ("trainer.min_delta", 0, -0.5, ">= 0"),
        ("trainer.verbosity", 0, -1, ">= 0"),
        ("trainer.log_step", 1, 0, ">= 1"),
        ("trainer.accumulate", 1, 0, ">= 1"),
        ("trainer.clip_grad_norm", 1e-9, 0, "> 0"),
        ("trainer.ema_decay", 1e-9, 0.0, "> 0"),
        ("trainer.ema_decay", 0.9999, 1, "< 1"),
        ("trainer.overfit", 1, 0, ">= 1"),
    ],
)
def test_a_number_is_taken_up_to_its_bound_and_refused_beyond_with_the_bound(path, inside, outside, said):
    section, _, name = path.rpartition(".")

    def told_of(value):
        return problems_of_trainer(**{name: value}) if section else problems(**{name: value})

    assert told_of(inside) == []
    assert told_of(outside) == [f"{path}: {outside}; it has to be {said}."]


@pytest.mark.parametrize("monitor", ["min val_loss", "max val_accuracy", "off"])
def test_a_monitor_says_min_or_max_and_a_number_or_off(monitor):
    assert problems_of_trainer(monitor=monitor) == []


@pytest.mark.parametrize("monitor", ["val_loss", "least val_loss", "min", "", "minval_loss", "min val loss"])
def test_a_monitor_that_says_neither_is_refused(monitor):
    (line,) = problems_of_trainer(monitor=monitor)
    assert line.startswith(f"trainer.monitor: {shown(monitor)} where") and "'min val_loss'" in line


def test_patience_without_a_number_to_wait_for_is_refused():
    (line,) = problems_of_trainer(early_stop=3)
    assert line.startswith("trainer.early_stop: ") and "trainer.monitor" in line
    assert problems_of_trainer(early_stop=3, monitor="off") == [line]
    assert problems_of_trainer(early_stop=3, monitor="min val_loss") == []


@pytest.mark.parametrize("patience", [0, None])
def test_no_patience_waits_for_no_number(patience):
    assert problems_of_trainer(early_stop=patience) == []


TWO = {"generator": {"type": "SGD", "params": "g.*"}, "critic": {"type": "AdamW", "params": "c.*"}}


@pytest.mark.parametrize(
    "schedules", [None, {"critic": "StepLR"}, {"critic": "StepLR", "generator": {"type": "StepLR"}}]
)
def test_each_of_several_optimizers_may_have_a_schedule(schedules):
    assert problems(optimizer=TWO, lr_scheduler=schedules) == []


@pytest.mark.parametrize(
    ("schedules", "wrong"),
    [({"critics": "StepLR"}, "critics"), ({"critic": "StepLR", "generators": "StepLR"}, "generators")],
)
def test_a_schedule_of_no_optimizer_is_named_with_the_nearest(schedules, wrong):
    (line,) = problems(optimizer=TWO, lr_scheduler=schedules)
    assert line == f"lr_scheduler.{wrong}: no such optimizer. Did you mean '{wrong[:-1]}'?"


@pytest.mark.parametrize("schedule", ["StepLR", {"type": "StepLR"}])
def test_a_schedule_that_is_for_none_of_several_optimizers_is_refused_with_their_names(schedule):
    (line,) = problems(optimizer=TWO, lr_scheduler=schedule)
    assert line.startswith("lr_scheduler: ") and line.endswith("Give each by the name of one: generator, critic.")


@pytest.mark.parametrize("optimizer", ["SGD", {"type": "SGD", "args": {"lr": 1}}])
def test_several_schedules_for_one_optimizer_are_refused(optimizer):
    (line,) = problems(optimizer=optimizer, lr_scheduler={"a": "StepLR", "b": "StepLR"})
    assert line == "lr_scheduler: there is one optimizer; give one schedule, not several by name."


@pytest.mark.parametrize("name", ["mnist", "Größe 3", "v1.2", "..a", ".a", "a" * 200])
def test_a_name_is_one_that_a_folder_can_have(name):
    assert problems(name=name) == []


@pytest.mark.parametrize("name", ["", ".", "..", "...", "a/b", "/a", "a\\b", "a\0b", "a" * 201, "ü" * 101])
def test_a_name_that_no_folder_can_have_is_refused(name):
    (line,) = problems(name=name)
    assert line.startswith("name: ") and "a folder's name" in line


def test_a_folder_for_runs_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (line,) = problems_of_trainer(save_dir=str(tmp_path / "file"))
    assert line.startswith(f"trainer.save_dir: {tmp_path / 'file'} can't be made in")


def test_a_folder_for_runs_below_a_file_is_refused_with_the_file(tmp_path):
    (tmp_path / "file").write_text("")
    (line,) = problems_of_trainer(save_dir=str(tmp_path / "file" / "saved" / "runs"))
    folder = tmp_path / "file" / "saved" / "runs"
    assert line == f"trainer.save_dir: {folder} can't be made in {tmp_path / 'file'}. Give another folder."


def test_a_folder_for_runs_is_looked_for_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "saved").write_text("")
    monkeypatch.chdir(tmp_path)
    (line,) = problems_of_trainer(save_dir="saved/")
    assert line.startswith(f"trainer.save_dir: {tmp_path / 'saved'} ")


@pytest.mark.parametrize("folder", ["a\0b", "x" * 300], ids=["a null byte", "too long"])
def test_a_folder_for_runs_that_can_have_no_such_name_is_refused(tmp_path, folder):
    (line,) = problems_of_trainer(save_dir=str(tmp_path / folder))
    assert line.startswith("trainer.save_dir: ")


def test_a_folder_for_runs_need_not_be_there_and_is_not_made(tmp_path):
    assert problems_of_trainer(save_dir=str(tmp_path / "new" / "saved")) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arch": {"type": "Net", "arg": {}}}, "arch.arg: unknown. Did you mean 'args'?"),
        ({"arch": {"typ": "Net", "args": {}}}, "arch.typ: unknown. Did you mean 'type'?"),
        ({"arch": {"args": {}}}, "arch.type: missing. A name in the section's own module, or a dotted path."),
        ({"arch": {"type": 3}}, "arch.type: 3 where text is wanted."),
        ({"arch": {"type": "Net", "args": [1]}}, "arch.args: [1] where {argument: value} is wanted."),
        ({"arch": {"type": "Net", "args": None}}, "arch.args: null where {argument: value} is wanted."),
        ({"arch": {"type": "Net", "zzz": 1}}, "arch.zzz: unknown. It accepts type, args."),
        (
            {"lr_scheduler": {"type": "StepLR", "interval": "batch"}},
            "lr_scheduler.interval: no 'batch'. It accepts epoch, step.",
        ),
        ({"lr_scheduler": {"type": "StepLR", "interval": 3}}, "lr_scheduler.interval: 3 where text is wanted."),
        ({"metrics": ["accuracy", {"type": "f1", "nam": "x"}]}, "metrics.1.nam: unknown. Did you mean 'name'?"),
        ({"metrics": [{"type": "f1", "name": 3}]}, "metrics.0.name: 3 where text is wanted."),
        ({"optimizer": {"g": {"type": "SGD", "param": "*"}}}, "optimizer.g.param: unknown. Did you mean 'params'?"),
        ({"optimizer": {"type": "SGD", "params": ["a"]}}, 'optimizer.params: ["a"] where text is wanted.'),
        (
            {"optimizer": {"type": "SGD", "interval": "step"}},
            "optimizer.interval: unknown. It accepts type, args, params.",
        ),
        (
            {"valid_data_loader": {"a": {"type": "L", "arg": {}}}},
            "valid_data_loader.a.arg: unknown. Did you mean 'args'?",
        ),
    ],
)
def test_a_slip_inside_an_object_is_named_with_its_path(changes, said):
    assert problems(**changes) == [said]


def test_all_problems_are_told_at_once():
    config = {**a_config(epochs=-1, amp="int8"), "seeed": 1, "loss": 3}
    assert [line.split(":")[0] for line in told(config)] == ["seeed", "loss", "trainer.epochs", "trainer.amp"]


def test_a_key_of_ones_own_goes_into_extra():
    assert problems(extra={"anything": [1, {"at": "all"}]}) == []


def test_a_config_that_came_from_no_file_can_extend_none():
    (line,) = problems(extends="base.json")
    assert line.startswith("extends: ")


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
    assert told(config) == []


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
    names = [key.path.rpartition(".")[2] for key in description.every_key() if key.path != "extra"]
    assert [name for name in names if not re.search(rf"""["'.]{re.escape(name)}["'.]""", text)] == []

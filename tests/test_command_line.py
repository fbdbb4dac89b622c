"""What one types: mistakes are told where they are, before any work; overrides, names of runs, exit codes."""

import json
import re
import shutil
from urllib.error import URLError

import noisy
import pytest
import torch
import toy
from lab import ROOT, history, load

from utils import imports


def assert_config_error(lab, done, *said):
    """Told in at most five lines, without a traceback, and no run was begun."""
    assert done.code == 2
    assert len(done.err.splitlines()) <= 5 and "Traceback" not in done.err
    for words in said:
        assert words in done.err
    assert not lab.saved.exists()


# --- mistakes in the config ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"trainer": {"early_stp": 3}}, ["config.json: trainer.early_stp", "'early_stop'"]),
        ({"optimzer": {}}, ["config.json: optimzer", "'optimizer'"]),
        ({"trainer": {"epochs": "ten"}}, ['config.json: trainer.epochs: "ten"', "a whole number"]),
        ({"trainer": {"epochs": 0}}, ["config.json: trainer.epochs: 0", ">= 1"]),
        ({"trainer": {"amp": "bf17"}}, ["config.json: trainer.amp", "'bf16'"]),
        ({"trainer": {"monitor": "val_loss"}}, ["config.json: trainer.monitor", "'min val_loss'"]),
        ({"optimizer": {"type": "toy.ProbeSGD", "arg": {}}}, ["config.json: optimizer.arg", "'args'"]),
        ({"lr_scheduler": {"type": "StepLR", "interval": "batch"}}, ["config.json: lr_scheduler.interval", "step"]),
    ],
)
def test_wrong_key_or_value_is_named_with_what_is_right(lab, section, said):
    assert_config_error(lab, lab.train(toy.config(lab.saved, **section)), *said)


def test_all_mistakes_of_a_config_are_told_at_once(lab):
    done = lab.train(toy.config(lab.saved, optimzer={}, trainer={"early_stp": 3, "epochs": "ten"}))
    assert done.code == 2
    assert all(place in done.err for place in ("optimzer", "trainer.early_stp", "trainer.epochs"))


def test_missing_section_is_named(lab):
    config = toy.config(lab.saved)
    del config["optimizer"]
    assert_config_error(lab, lab.train(config), "config.json: optimizer: missing")


def test_keys_of_ones_own_are_allowed_in_extra(lab):
    assert lab.train(toy.config(lab.saved, extra={"note": "mine"}), "trainer.epochs=1").code == 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimizer.type=Adamm", ["optimizer.type", "'Adamm'", "'Adam'"]),
        ("optimizer.args.lrr=0.1", ["optimizer.args.lrr", "'lr'"]),
        ("loss=toy.mean_outt", ["loss", "'mean_outt'", "'mean_out'"]),
        ("arch.args.stepss=2", ["arch.args.stepss", "'steps'"]),
        ("data_loader.args.batchsize=2", ["data_loader.args.batchsize", "'batch_size'"]),
        ("data_loader.args.dataset.args.m=2", ["data_loader.args.dataset.args.m", "It accepts n, values"]),
        ('metrics=["acuracy"]', ["metrics.0", "'acuracy'", "'accuracy'"]),
        ("arch=nowhere.Model", ["arch", "no module 'nowhere'"]),
        ("trainer.monitor=min val_los", ["trainer.monitor", "'val_loss'"]),
    ],
)
def test_wrong_name_is_told_by_its_place_with_the_nearest_right_one(lab, override, said):
    assert_config_error(lab, lab.train(toy.config(lab.saved), override), *said)


def test_missing_argument_is_told_by_its_place(lab):
    config = toy.config(lab.saved)
    del config["arch"]["args"]["steps"]
    assert_config_error(lab, lab.train(config), "config.json: arch.args.steps: missing", "Scripted")


def test_of_a_long_error_of_a_library_the_begin_of_its_first_line_is_told(lab):
    (lab.folder / "wordy.py").write_text("def model():\n    raise ValueError('long ' * 1000 + '\\nsecond line')\n")
    done = lab.train(toy.config(lab.saved, arch="wordy.model"))
    assert_config_error(lab, done, "arch: model() raised ValueError: long long")
    assert done.err.count("long") == 300 / len("long ") and "second" not in done.err


def test_constructor_that_raises_is_a_mistake_of_the_config(lab):
    assert_config_error(lab, lab.train(toy.config(lab.saved), "--lr", "-1"), "optimizer", "ValueError", "-1")


def test_syntax_error_is_told_by_its_line(lab):
    path = lab.write('{\n "name": "toy"\n "seed": 1\n}')
    assert_config_error(lab, lab.train(path), str(path), "line 3")


def test_key_that_stands_twice_is_named(lab):
    assert_config_error(lab, lab.train(lab.write('{"name": "a", "name": "b"}')), "name: stands twice", "keep one")


@pytest.mark.parametrize("depth", [800, 2000])
@pytest.mark.parametrize("by", ["file", "command line"])
def test_value_that_is_nested_too_deeply_is_refused_or_text(lab, by, depth):
    """On the command line, what JSON does not parse is text."""
    value = "[" * depth + "]" * depth
    if by == "file":
        path = lab.write(json.dumps(toy.config(lab.saved, extra=0)).replace('"extra": 0', f'"extra": {value}'))
        assert_config_error(lab, lab.train(path), f"{path}: nested too deeply")
    else:
        done = lab.train(toy.config(lab.saved), "--check", f"extra={value}")
        assert done.code == 0 or "command line: extra" in done.err


def test_number_that_json_does_not_know_is_refused(lab):
    assert_config_error(lab, lab.train(lab.write('{"name": "a", "seed": NaN}')), "NaN")


def test_file_that_is_not_there_is_named_by_its_whole_path(lab):
    path = lab.folder / "none.json"
    assert_config_error(lab, lab.train(path), f"{path}: No such file", "-c FILE")


@pytest.mark.parametrize("words", [(), ("-r", "auto")])
def test_command_without_a_config_asks_for_one(lab, words):
    assert_config_error(lab, lab.train(None, *words), "-c config.json")


def test_checkpoint_that_is_not_there_is_a_mistake_of_the_command_line(lab):
    path = lab.folder / "none.pth"
    assert_config_error(lab, lab.resume(path), str(path), "no such checkpoint")


def test_unreadable_checkpoint_has_a_code_of_its_own(lab):
    path = lab.folder / "bad.pth"
    path.write_bytes(b"not a checkpoint")
    done = lab.resume(path)
    assert done.code == 3 and str(path) in done.err and not lab.saved.exists()


def test_file_that_holds_a_bare_tensor_is_no_checkpoint(lab):
    path = lab.folder / "tensor.pth"
    torch.save(torch.zeros(2), path)
    done = lab.resume(path)
    assert done.code == 3 and str(path) in done.err and "Tensor" in done.err and not lab.saved.exists()


def test_file_with_a_byte_order_mark_is_read(lab):
    path = lab.folder / "marked.json"
    path.write_text(json.dumps(toy.config(lab.saved, trainer={"epochs": 1})), encoding="utf-8-sig")
    assert lab.train(path).code == 0


# --- overrides -------------------------------------------------------------------------------------------------------


def test_overrides_are_json_where_they_parse_and_text_elsewhere(lab):
    words = ("trainer.epochs=1", "name=1e", "lr_scheduler=null", "trainer.tensorboard=false", "optimizer.args.lr=1e-1")
    lab.train(toy.config(lab.saved), *words, "extra=[1, true]", "arch.args.script=[4]")
    saved = json.loads((lab.run / "config.json").read_text())
    assert saved["trainer"]["epochs"] == 1 and saved["name"] == "1e" and saved["lr_scheduler"] is None
    assert saved["trainer"]["tensorboard"] is False and saved["optimizer"]["args"]["lr"] == 0.1
    assert saved["extra"] == [1, True] and saved["arch"]["args"]["script"] == [4]


@pytest.mark.parametrize(
    ("override", "nearest"),
    [("trainer.epoch=2", "'epochs'"), ("optimzer.args.lr=2", "'optimizer'"), ("trainer.early_stp.x=2", "'early_stop'")],
)
def test_override_of_a_key_that_does_not_exist_is_refused_with_the_nearest(lab, override, nearest):
    done = lab.train(toy.config(lab.saved), override)
    assert_config_error(lab, done, "command line: " + override.split(".")[0], nearest)


def test_word_that_is_no_override_is_named(lab):
    assert_config_error(lab, lab.train(toy.config(lab.saved), "trainer.epochs"), "'trainer.epochs' is not KEY=VALUE")


@pytest.mark.parametrize(("written", "right"), [("True", "true"), ("False", "false"), ("None", "null")])
def test_word_of_python_is_refused_with_that_of_json(lab, written, right):
    """As text it would count as true."""
    done = lab.train(toy.config(lab.saved), f"arch.args.x={written}")
    assert_config_error(lab, done, f"command line: arch.args.x: write {right}, not {written}.")


@pytest.mark.parametrize("words", [("name=a/b",), ("name=..",), ("--run-id", "a/b"), ("--run-id", "..")], ids=" ".join)
def test_name_that_leads_out_of_the_folder_of_runs_is_refused(lab, words):
    asked = words[-1].removeprefix("name=")
    assert_config_error(lab, lab.train(toy.config(lab.saved), *words), words[0].partition("=")[0], asked, "folder")


def test_override_gives_an_argument_that_the_file_leaves_out(lab):
    config = toy.config(lab.saved, optimizer="toy.ProbeSGD")
    lab.train(config, "optimizer.args.lr=0.25", "trainer.epochs=1")
    assert lab.probe("lr") == [0.25, 0.25]


def test_shorter_flags_set_the_rate_and_the_batch_size(lab):
    lab.train(toy.config(lab.saved), "--lr", "0.5", "--bs", "8", "arch.args.steps=1", "trainer.epochs=1")
    assert lab.probe("lr") == [0.5]
    assert len(lab.probe("x")[0]) == 8


def test_run_id_names_the_folder_and_another_run_of_it_is_numbered(lab):
    config = toy.config(lab.saved, trainer={"epochs": 1})
    for _ in range(2):
        lab.train(config, "--run-id", "mine")
    assert [path.name for path in lab.runs()] == ["mine", "mine-2"]


def test_folder_of_a_run_is_named_by_the_time(lab):
    lab.train(toy.config(lab.saved, trainer={"epochs": 1}))
    assert re.fullmatch(r"\d{8}-\d{6}", lab.run.name)


def test_devices_that_are_asked_for_are_set_before_torch_is_imported(lab, monkeypatch, checkout):
    """A user's module that is named as the model looks at what torch would find."""
    code = "import os\n\n\ndef model():\n    raise ValueError(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    (lab.folder / "mine.py").write_text(code)
    path = lab.write(toy.config(lab.saved, arch="mine.model"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = lab.train(path, "-d", "3,5")
    assert "raised ValueError: 3,5 (mine.py" in done.err


@pytest.mark.parametrize("name", ["meta", "hpu", "cud", ""])
def test_device_that_torch_can_not_compute_on_here_is_refused(lab, name):
    assert_config_error(lab, lab.train(toy.config(lab.saved, device=name)), f"config.json: device: '{name}' can't be")


@pytest.mark.parametrize("trainer", [5, None, []])
@pytest.mark.parametrize("words", [(), ("-r", "latest"), ("-r", "auto")], ids=" ".join)
def test_trainer_that_is_no_section_is_named_before_a_run_is_looked_for(lab, words, trainer):
    done = lab.train(toy.config(lab.saved) | {"trainer": trainer}, *words)
    assert_config_error(lab, done, f"config.json: trainer: {json.dumps(trainer)} where {{key: value}} is wanted")


@pytest.mark.parametrize("words", [(), ("-r", "latest"), ("-r", "auto")], ids=" ".join)
def test_misspelt_name_of_the_experiment_is_told_before_a_run_is_looked_for(lab, words):
    config = toy.config(lab.saved)
    config["nmae"] = config.pop("name")
    assert_config_error(lab, lab.train(config, *words), "config.json: nmae: unknown", "'name'")


def test_paths_on_the_command_line_are_relative_to_where_one_stands(lab, monkeypatch):
    lab.write(toy.config(lab.saved, trainer={"epochs": 1}), "near.json")
    monkeypatch.chdir(lab.folder)
    assert lab.train("near.json").code == 0
    monkeypatch.chdir(lab.run)
    assert "Nothing left to do" in lab.resume("latest.pth").out


def test_saved_config_repeats_the_run(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=2", "optimizer.args.lr=0.5", "--run-id", "first")
    shutil.copy(lab.saved / "toy/first/config.json", lab.folder / "again.json")
    lab.train(lab.folder / "again.json", "--run-id", "again")
    assert history(lab.saved / "toy/first") == history(lab.saved / "toy/again")


# --- checkpoints of strangers ----------------------------------------------------------------------------------------


def of_a_stranger(lab, change):
    """A checkpoint whose config was changed, and the file that it would make."""
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    path, made = lab.run / "latest.pth", lab.folder / "made"
    content = load(path)
    change(content["config"], str(made))
    torch.save(content, path)
    return path, made


def as_loss(config, made):
    config["loss"] = {"type": "os.system", "args": {"command": f"touch {made}"}}


def as_metric(config, made):
    config["metrics"] = [{"type": "os.system", "args": {"command": f"touch {made}"}}]


def as_model(config, made):
    config["arch"] = {"type": "os.system", "args": {"command": f"touch {made}"}}


def as_argument(config, made):
    config["arch"]["args"]["script"] = {"type": "subprocess.Popen", "args": {"args": ["touch", made]}}


def as_argument_in_a_list(config, made):
    config["arch"]["args"]["script"] = [{"type": "subprocess.Popen", "args": {"args": ["touch", made]}}]


def as_name_in_a_module_of_the_users(config, made):
    config["arch"] = {"type": "toy.os.system", "args": {"command": f"touch {made}"}}


def as_training_data(config, made):
    """Evaluation looks at what a loader takes where there is no test_data_loader."""
    config["data_loader"] = {"type": "os.system", "args": {"command": f"touch {made}"}}


STRANGERS = [
    *(as_loss, as_metric, as_model, as_argument, as_argument_in_a_list, as_name_in_a_module_of_the_users),
    as_training_data,
]
named = pytest.mark.parametrize("change", STRANGERS, ids=lambda change: change.__name__)


@named
def test_command_in_a_checkpoints_config_is_refused_on_resume_and_not_run(lab, change):
    path, made = of_a_stranger(lab, change)
    done = lab.resume(path, "trainer.epochs=2")
    assert done.code == 3 and "which a checkpoint may not run" in done.err
    assert "-c FILE" in done.err and "--trust" in done.err
    assert not made.exists()


@named
def test_command_in_a_checkpoints_config_is_refused_in_evaluation_and_not_run(lab, change):
    path, made = of_a_stranger(lab, change)
    done = lab.test(path)
    assert done.code == 3 and "which a checkpoint may not run" in done.err
    assert not made.exists()


def test_trusted_checkpoint_runs_what_it_names(lab):
    """Which also shows that what the tests above refuse would run."""
    path, made = of_a_stranger(lab, as_model)
    done = lab.resume(path, "trainer.epochs=2", "--trust")
    assert "may not run" not in done.err
    assert made.exists()


@pytest.mark.parametrize("change", [as_loss, as_model])
def test_config_that_is_given_replaces_the_checkpoints_and_is_not_judged(lab, change):
    path, made = of_a_stranger(lab, change)
    done = lab.train(toy.config(lab.saved), "-r", path, "trainer.epochs=2")
    assert done.code == 0 and not made.exists()


def test_users_modules_come_only_from_folders_whose_configs_were_given_here(lab):
    """A checkpoint that names a folder in its environment.json does not put it on the import path."""
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    imports.NOTE.unlink()
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=2")
    assert done.code == 2 and "no module 'toy'" in done.err


# --- test.py ---------------------------------------------------------------------------------------------------------


def test_evaluation_writes_into_the_runs_folder_and_makes_no_new_one(lab):
    lab.train(toy.config(lab.saved, test_data_loader=toy.rows(5)), "trainer.epochs=2")
    before = {path.name for path in lab.run.iterdir()}
    done = lab.test(lab.run / "latest.pth")
    assert done.code == 0
    assert {path.name for path in lab.run.iterdir()} - before == {"test.json"}
    written = json.loads((lab.run / "test.json").read_text())
    assert written == {
        "checkpoint": "latest.pth",
        "epoch": 2,
        "split": "test",
        "examples": 5,
        "test_loss": done.numbers["test_loss"],
    }


@pytest.mark.parametrize(("split", "examples"), [("train", 8), ("val", 3)])
def test_evaluation_takes_the_split_that_is_asked_for(lab, split, examples):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    lab.test(lab.run / "latest.pth", "--split", split)
    assert json.loads((lab.run / f"test-{split}.json").read_text())["examples"] == examples


def test_evaluation_takes_the_sections_of_a_given_config_in_the_place_of_the_checkpoints(lab):
    """The output is 3 for the targets 0, 1 and 2."""
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    done = lab.test(lab.run / "latest.pth", "--split", "val", config={"loss": "toy.squared"})
    assert done.numbers["val_loss"] == pytest.approx((9 + 4 + 1) / 3)


def test_evaluation_uses_the_averaged_weights(lab):
    """The number is the one that the run measured, which was with the average."""
    config = noisy.everything(lab.saved, metrics=[], trainer={"epochs": 1})
    config |= {"arch": "noisy.Image", "data_loader": images(), "valid_data_loader": images()}
    lab.train(config)
    done = lab.test(lab.run / "latest.pth", "--split", "val")
    assert done.numbers["val_loss"] == history(lab.run)[0]["val_loss"]


def images():
    return {"type": "DataLoader", "args": {"dataset": {"type": "noisy.Images"}, "batch_size": 8}}


def test_evaluation_draws_from_the_seed_of_the_run(lab):
    """As the validation of epoch 1 did: the noise on an example is the same."""
    linear = {"type": "torch.nn.Linear", "args": {"in_features": 4, "out_features": 1}}
    lab.train(noisy.everything(lab.saved, arch=linear, metrics=[], trainer={"epochs": 1}))
    done = lab.test(lab.run / "latest.pth", "--split", "val")
    assert done.numbers["val_loss"] == history(lab.run)[0]["val_loss"]


# --- data that is not there ------------------------------------------------------------------------------------------


def test_download_without_a_network_names_the_digits_that_are_here(lab, monkeypatch):
    mnist = pytest.importorskip("torchvision.datasets.mnist")

    def no_network(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(mnist, "download_and_extract_archive", no_network)
    words = ("data_loader.args.download=true", f"data_loader.args.data_dir={lab.folder / 'mnist'}")
    done = lab.train(ROOT / "config.json", *words, f"trainer.save_dir={lab.saved}")
    assert_config_error(lab, done, "data_loader.args.download", "data/mnist10k")


def test_folder_without_data_names_the_digits_that_are_here(lab):
    words = (f"data_loader.args.data_dir={lab.folder}", f"trainer.save_dir={lab.saved}")
    assert_config_error(lab, lab.train(ROOT / "config.json", *words), "data_loader.args.data_dir", "data/mnist10k")


# --- whole processes -------------------------------------------------------------------------------------------------


def imported(err):
    """(top and second-level names of the modules that -X importtime tells of, the other lines)."""
    lines = err.splitlines()
    told = [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
    return set(told), [line for line in lines if not line.startswith("import time:")]


def test_config_that_is_wrong_by_itself_is_told_without_loading_torch(lab, checkout):
    path = lab.write(toy.config(lab.saved, trainer={"early_stp": 3}), "wrong.json")
    done = checkout.run("-X", "importtime", "train.py", "-c", path)
    modules, lines = imported(done.err)
    assert done.code == 2 and not lab.saved.exists()
    assert len(lines) <= 5 and "wrong.json: trainer.early_stp" in lines[0] and "'early_stop'" in lines[0]
    assert "parse_config" in modules and "torch" not in modules and "numpy" not in modules


@pytest.mark.parametrize("words", [("train.py", "-c"), ("test.py", "-r")], ids=" ".join)
def test_mistake_is_told_with_its_place_in_the_code_where_that_is_asked_for(lab, checkout, words):
    done = checkout.run(*words, lab.folder / "none", "--traceback")
    assert done.code == 2 and "Traceback" in done.err
    assert done.err.splitlines()[-1].lower().count("no such") == 1


def test_default_run_imports_no_package_that_it_does_not_use(lab, checkout):
    words = ("trainer.max_steps=2", "trainer.tensorboard=false", f"trainer.save_dir={lab.saved}")
    done = checkout.run("-X", "importtime", "train.py", "-c", checkout.root / "config.json", *words)
    modules, _ = imported(done.err)
    assert done.code == 0, done.err
    assert "torch" in modules and (lab.run / "latest.pth").exists()
    unused = {"torchvision", "torch._dynamo", "wandb", "tensorboard", "torch.utils.tensorboard", "yaml"}
    assert modules & unused == set()


def test_error_in_the_users_code_keeps_its_traceback(lab, checkout):
    """Exit code 1: the config was right, the first batch was not."""
    (lab.folder / "mine.py").write_text("def loss(output, target):\n    return output.nonsense()\n")
    path = lab.write(toy.config(lab.saved, loss="mine.loss"))
    done = checkout.run("train.py", "-c", path)
    assert done.code == 1 and "nonsense" in done.err and "mine.py" in done.err

"""Evaluate a checkpoint.

python test.py -r saved/mnist/RUN/model_best.pth                    on the test data of its own config
python test.py -r saved/mnist/RUN/model_best.pth --split val        on its validation data
"""

import inspect
import sys

from parse_config import ConfigParser
from utils import command_line, imports, write_json
from utils.errors import ConfigError, exit_code
from utils.objects import known_to
from utils.util import named

# Arguments of a training loader that its test part has no use for.
OF_TRAINING = ("stratify", "group_by", "folds", "fold", "sampler", "drop_last")


def main(config, split="test"):
    """{name: number} of the checkpoint `config.resume` on a split of its data; also written into the run's folder."""
    if isinstance(config.get("trainer"), dict):
        config["trainer"].update(save_dir=".", tensorboard=False)  # an evaluation writes to neither
    config.check()
    if config.checkpoint is None:
        raise ConfigError("-r: no run of this name has a checkpoint.")
    from trainer import Trainer, build
    from trainer.evaluate import evaluate
    from trainer.stepper import precision
    from utils import checkpoint, devices, processes
    from utils.metrics import Metrics

    device = devices.start(config)
    asked, (loaders, split) = split, _loaders_of(config, split)
    content, config.checkpoint = config.checkpoint, None
    for loader in loaders.values():
        loader.evaluating().seed = config["seed"]
        if content.get("data") is not None and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(content["data"])
    model = build.model(config)
    checkpoint.load_weights(model, content["state_dict"], config.resume)
    model, criterion = build.wrapped(config, model, device), build.criterion(config, device)
    how = {"device": device, "memory_format": devices.memory_format(config["trainer"]["channels_last"])}
    how["autocast"] = precision(config["trainer"]["amp"], device)
    trainer = config.find("trainer")
    trainer = trainer.__new__(trainer) if issubclass(trainer, Trainer) else Trainer  # else a loop of one's own
    numbers = {}
    for name, loader in loaders.items():
        metrics = Metrics(build.metrics(config, device), f"{split}_{name}_" if name else f"{split}_", device)
        numbers |= evaluate(trainer, model, loader, criterion, metrics, **how)
    if processes.is_main():
        examples = sum(loader.n_samples or 0 for loader in loaders.values())
        about = {"checkpoint": config.resume.name, "epoch": content["epoch"], "split": split, "examples": examples}
        name = "test.json" if asked == "test" else f"test-{asked}.json"
        _report(config.get_logger("test"), config.resume.with_name(name), about, numbers)
    return numbers


def _loaders_of(config, split):
    """({name: loader}, split) of the data to evaluate on."""
    section = config["data_loader"]
    if split == "test" and config["test_data_loader"] is None:
        found = config.find("data_loader")
        if "training" in (own := inspect.signature(found).parameters):
            kept = {name: value for name, value in section["args"].items() if name not in OF_TRAINING or name in own}
            off = {name: False for name in ("training", "shuffle", "validation_split") if name in known_to(found)}
            config["data_loader"] = {**section, "args": kept | off}
            return {"": config.init_obj("data_loader")}, split
        why = f"There is no test_data_loader, and {section['type']} has no test part (no argument 'training')"
        config.get_logger("test").info(f"{why}: evaluating on the validation data.")
        split = "val"
    if split == "train":  # each example once
        for name in ("sampler", "drop_last"):
            section["args"].pop(name, None)
    name = {"test": "test_data_loader", "val": "valid_data_loader", "train": "data_loader"}[split]
    if config[name] is None:
        made = config.init_obj("data_loader").split_validation()
        if made is None:
            raise ConfigError("There is no test_data_loader, valid_data_loader or split; give one, or --split train.")
        return {"": made}, split
    loaders = named(config.init_obj(name))
    config.remember("data_loader", next(iter(loaders.values())))
    return loaders, split


def _report(logger, path, about, numbers):
    for name, value in numbers.items():
        logger.info(f"{name:<24} {value:.4f}")
    try:
        write_json({**about, **numbers}, path)
        logger.info(f"written to {path}")
    except OSError as error:
        logger.warning(f"{path} could not be written: {error.strerror}")


def parser():
    """The command line."""
    made = command_line.parser(__doc__, help="the checkpoint, or the 'latest' run of -c", required=True)
    made.add_argument("--split", choices=("test", "val", "train"), default="test", help="which data; default: test")
    return made


def run():
    """The whole command; what it raises, `exit_code` tells."""
    config = ConfigParser.from_args(parser())
    if config.asked.check:
        imports.optional("extras.doctor", "--check").show(config)
    else:
        main(config, config.asked.split)


if __name__ == "__main__":
    sys.exit(exit_code(run, traceback="--traceback" in sys.argv))

"""Configs that are no ConfigParser of ours: a plain dict, as in 2018, or the object of a parser that a fork keeps."""

from collections.abc import Mapping
from pathlib import Path

from parse_config import ConfigParser
from utils.description import keys_in
from utils.errors import ConfigError, near


def adapted(trainer, config, more, named):
    """A ConfigParser for what BaseTrainer was given as `config`, behind it, and by name beside that.

    In 2018 that was (resume, config, train_logger), the first a path or None, the second a dict, which becomes the
    trainer's `config`; a train_logger is then told every epoch's numbers. `monitor` may be split into itself and
    `monitor_mode`. The object of another parser gives its sections, its checkpoint and its folder.
    """
    resume, train_logger = named.get("resume", getattr(config, "resume", None)), named.get("train_logger")
    if config is None or isinstance(config, (str, Path)):
        resume, trainer.config, train_logger = config, *(*more, train_logger)[:2]
    if train_logger is not None:
        trainer.train_logger = train_logger
        trainer.on_epoch_end = lambda epoch, log: train_logger.add_entry(log)
    sections = getattr(trainer.config, "config", trainer.config)
    if not isinstance(sections, Mapping) or "trainer" not in sections:
        way = "BaseTrainer takes (model, criterion, metrics, optimizer, config); for another order keep your own base."
        raise ConfigError(f"config: a {type(sections).__name__} without a 'trainer' section is none. {way}")
    made = ConfigParser(sections, resume or None)
    if mode := made["trainer"].get("monitor_mode"):
        made["trainer"]["monitor"] = "off" if mode == "off" else f"{mode} {made['trainer']['monitor']}"
    if hasattr(config, "save_dir"):
        made.save_dir = Path(config.save_dir)
        made.save_dir.mkdir(parents=True, exist_ok=True)
    return made


def misspelt(sections):
    """Yield (dotted path, advice) of unknown keys that are nearly one of ours; others are a fork's own."""
    trainer = sections.get("trainer")
    for path, holder in {"": sections, "trainer": trainer if isinstance(trainer, dict) else {}}.items():
        left_out = [name for name in keys_in(path) if name not in holder]
        for name in holder.keys() - keys_in(path).keys():
            if meant := near(name, left_out, cutoff=0.8):
                yield f"{path}.{name}".lstrip("."), f"no key of ours. {meant}"


def warn_of_misspelt(config):
    for path, why in misspelt(config.config):
        config.get_logger("config").warning(f"{config.place(path)}: {why}")

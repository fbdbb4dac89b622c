"""Configs that are no ConfigParser of ours: a plain dict, as in 2018, or the object of a parser that a fork keeps."""

from pathlib import Path

from parse_config import ConfigParser
from utils.description import keys_in
from utils.errors import near


def adapted(trainer, config, more):
    """A ConfigParser for what BaseTrainer was given as `config` and behind it.

    In 2018 that was (resume, config, train_logger), the first a path or None, the second a dict; a train_logger is then
    told every epoch's numbers. The object of another parser gives its sections, its checkpoint and its folder.
    """
    resume = getattr(config, "resume", None)
    if config is None or isinstance(config, (str, Path)):
        resume, config, *more = config, *more
        trainer.train_logger = more[0] if more else None
        if trainer.train_logger is not None:
            trainer.on_epoch_end = lambda epoch, log: trainer.train_logger.add_entry(log)
    made = ConfigParser(getattr(config, "config", config), resume or None)
    if hasattr(config, "save_dir"):
        made._folder = Path(config.save_dir)
        made._folder.mkdir(parents=True, exist_ok=True)
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

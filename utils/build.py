"""The parts of a run that take more than their section of the config: what they depend on, where they live."""

import inspect

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from utils import devices, optim
from utils.errors import ConfigError


def training(config):
    """The training data; ConfigError where it gives no batch."""
    made = config.init_obj("data_loader")
    if hasattr(made.dataset, "__len__") and len(made) == 0:
        raise ConfigError(
            f"{config.source}: data_loader.args: {made.n_samples} samples give no batch of batch_size {made.batch_size}"
            f"{' with drop_last' if made.drop_last else ''}, so nothing would be trained. Give a smaller batch_size."
        )
    return made


def validation(config, data_loader):
    """The validation data: of its own section, one or {name: loader}, or split off `data_loader`; None without."""
    if config.get("valid_data_loader") is None:
        return data_loader.split_validation()
    made = config.init_obj("valid_data_loader")
    for loader in made.values() if isinstance(made, dict) else [made]:
        hand_on(data_loader, loader)
    return made


def hand_on(data_loader, loader):
    """Give another loader what the training loader has learned from its data (a vocabulary, statistics)."""
    if hasattr(data_loader, "state_dict") and hasattr(loader, "load_state_dict"):
        loader.load_state_dict(data_loader.state_dict())


def model(config, device):
    """The model, on the device and in the memory format of `trainer.channels_last`."""
    made = config.init_obj("arch")
    if not isinstance(made, torch.nn.Module):
        raise ConfigError(f"{config.source}: arch: {type(made).__name__} is no torch.nn.Module.")
    return made.to(device).to(memory_format=devices.memory_format(config["trainer"]["channels_last"]))


def wrapped(config, made, device):
    """The model as the loop calls it: compiled, in DataParallel, in DistributedDataParallel, or as it is."""
    return devices.wrap(
        made,
        device,
        parallel=config["parallel"],
        n_gpu=config["n_gpu"],
        compile_with=config["trainer"]["compile"],
        warn=config.get_logger("train").warning,
    )


def criterion(config, device):
    """The loss, its own tensors (class weights) on the device."""
    made = config.init_obj("loss")
    return made.to(device) if isinstance(made, torch.nn.Module) else made


def metrics(config, device):
    """The metrics, those with state (torchmetrics) on the device."""
    return [made.to(device) if hasattr(made, "to") else made for made in config.init_obj("metrics")]


def optimizer(config, made):
    """The optimizer of the parameters that learn; or {name: optimizer}, each of those its `params` pattern matches."""
    section = config["optimizer"]
    if isinstance(section, str) or "type" in section:
        return config.init_obj("optimizer", None, optim.trainable(made, place=f"{config.source}: optimizer"))
    optimizers = {}
    for name, spec in section.items():
        pattern = spec.get("params", "*") if isinstance(spec, dict) else "*"
        parameters = optim.trainable(made, pattern, f"{config.source}: optimizer.{name}.params")
        optimizers[name] = config.init_obj(f"optimizer.{name}", None, parameters)
    return optimizers


def schedule(config, optimizers, data_loader):
    """The learning rate's schedule, told of the run's length where its args leave that out; or {name: schedule}."""
    section = config.get("lr_scheduler")
    if section is None:
        return None
    if isinstance(section, str) or "type" in section:
        if isinstance(optimizers, dict):
            raise ConfigError(
                f"{config.source}: lr_scheduler: there are several optimizers; give a schedule by each of their names, "
                f"{', '.join(optimizers)}."
            )
        return _one_schedule(config, "lr_scheduler", section, optimizers, data_loader)
    unknown = [name for name in section if not isinstance(optimizers, dict) or name not in optimizers]
    if unknown:
        raise ConfigError(f"{config.source}: lr_scheduler.{unknown[0]}: no optimizer has this name.")
    return {
        name: _one_schedule(config, f"lr_scheduler.{name}", spec, optimizers[name], data_loader)
        for name, spec in section.items()
    }


def _one_schedule(config, path, spec, one_optimizer, data_loader):
    spec = {"type": spec} if isinstance(spec, str) else spec
    found, given = config.find(path), spec.get("args", {})
    settings = config["trainer"]
    updates, per_epoch = planned_updates(settings, data_loader)
    if spec.get("interval", "epoch") == "epoch":
        updates = settings["epochs"]
    known = optim.planned_arguments(found, given, updates, per_epoch)
    if inspect.isclass(found) and issubclass(found, ReduceLROnPlateau) and "mode" not in given:
        known["mode"] = "max" if settings["monitor"].startswith("max") else "min"
    return config.init_obj(path, None, one_optimizer, **known)


def planned_updates(settings, data_loader):
    """(optimizer updates of the whole run, of an epoch); None for what a stream without a length leaves open."""
    batches = settings["len_epoch"]
    if batches is None and hasattr(data_loader.dataset, "__len__"):
        batches = len(data_loader)
    per_epoch = -(-batches // settings["accumulate"]) if batches else None
    by_epochs = per_epoch * settings["epochs"] if per_epoch and settings["epochs"] else None
    planned = [count for count in (by_epochs, settings["max_steps"]) if count is not None]
    return min(planned, default=None), per_epoch

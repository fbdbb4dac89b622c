"""The parts of a run that take more than their section of the config: what they depend on, where they live."""

import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from utils import devices, optim, processes
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
        if hasattr(data_loader, "state_dict") and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(data_loader.state_dict())  # a vocabulary, statistics: of the training data alone
    return made


def model(config, device):
    """The model, on the device and in the memory format of `trainer.channels_last`."""
    made = config.init_obj("arch")
    if not isinstance(made, torch.nn.Module):
        raise ConfigError(f"{config.source}: arch: {type(made).__name__} is no torch.nn.Module.")
    return made.to(device).to(memory_format=devices.memory_format(config["trainer"]["channels_last"]))


def wrapped(config, made, device):
    """The model as the loop calls it: compiled, in DistributedDataParallel, in DataParallel, or as it is."""
    if compile_with := config["trainer"]["compile"]:
        made = torch.compile(made, **(compile_with if isinstance(compile_with, dict) else {}))
    wanted = config["n_gpu"] or 0
    if processes.size() > 1 or (config["parallel"] != "data_parallel" and (config["parallel"] == "none" or wanted < 2)):
        return processes.wrap(made, device)
    there = torch.cuda.device_count()
    if there < max(wanted, 2):
        asked = f"n_gpu={wanted}" if wanted else "parallel=data_parallel"
        config.get_logger("train").warning(f"{asked}, but this machine has {there} GPUs; training on {device} alone.")
    return torch.nn.DataParallel(made, list(range(min(wanted or there, there)))) if there > 1 else made


def criterion(config, device):
    """The loss, its own tensors (class weights) on the device."""
    made = config.init_obj("loss")
    return made.to(device) if isinstance(made, torch.nn.Module) else made


def metrics(config, device):
    """The metrics, those with state (torchmetrics) on the device."""
    return [made.to(device) if hasattr(made, "to") else made for made in config.init_obj("metrics")]


def optimizer(config, made):
    """The optimizer of the parameters that learn; or {name: optimizer}, each of those its `params` pattern matches."""

    def one(path, spec):
        pattern, place = spec.get("params", "*"), f"{config.source}: {path}"
        return config.init_obj(path, None, optim.trainable(made, pattern, place))

    optimizers = _each(config, "optimizer", one)
    every = list(optimizers.values()) if isinstance(optimizers, dict) else [optimizers]
    moved = {id(p) for one in every for group in one.param_groups for p in group["params"]}
    if left := [name for name, p in made.named_parameters() if p.requires_grad and id(p) not in moved]:
        config.get_logger("train").warning(
            f"optimizer: none moves {', '.join(left[:8])}; freeze them or widen a 'params'."
        )
    return optimizers


def schedule(config, optimizers, data_loader):
    """The learning rate's schedule, told of the run's length where its args leave that out; or {name: schedule}."""
    settings = config["trainer"]
    updates, per_epoch = planned_updates(settings, data_loader)
    named = optimizers if isinstance(optimizers, dict) else {"": optimizers}

    def one(path, spec):
        name = path.partition(".")[2]
        if name not in named:
            raise ConfigError(
                f"{config.source}: {path}: which optimizer is it for? Give each schedule by the name of one: "
                f"{', '.join(named)}."
            )
        found, given, interval = config.find(path), spec["args"], spec.get("interval", "epoch")
        if found is ReduceLROnPlateau and interval == "step":
            raise ConfigError(
                f"{config.source}: {path}.interval: ReduceLROnPlateau waits for validations; leave it out."
            )
        steps = updates if interval == "step" else settings["epochs"]
        known = optim.planned_arguments(found, given, steps, per_epoch)
        if found is OneCycleLR and "max_lr" not in given:  # the optimizer's rate is the one it climbs to
            known["max_lr"] = [group["lr"] for group in named[name].param_groups]
        if found is ReduceLROnPlateau and "mode" not in given:
            known["mode"] = "max" if settings["monitor"].startswith("max") else "min"
        made = config.init_obj(path, None, named[name], **known)
        made.interval = interval  # what the stepper counts for it
        return made

    return _each(config, "lr_scheduler", one) if config.get("lr_scheduler") is not None else None


def _each(config, name, make):
    """make(dotted path, spec) of a section's one object, or of each in {name: object}."""
    section = config[name]
    if "type" in section:
        return make(name, section)
    return {key: make(f"{name}.{key}", spec) for key, spec in section.items()}


def planned_updates(settings, data_loader):
    """(optimizer updates of the whole run, of an epoch); None for what a stream without a length leaves open."""
    batches = settings["len_epoch"]
    if batches is None and hasattr(data_loader.dataset, "__len__"):
        batches = len(data_loader)
    per_epoch = -(-batches // settings["accumulate"]) if batches else None
    by_epochs = per_epoch * settings["epochs"] if per_epoch and settings["epochs"] else None
    planned = [count for count in (by_epochs, settings["max_steps"]) if count is not None]
    return min(planned, default=None), per_epoch

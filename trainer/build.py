"""The parts of a run that take more than their section of the config: what they depend on, where they live."""

import math

import torch
from torch.optim.lr_scheduler import LRScheduler

from base import BaseDataLoader
from trainer import parallel
from utils import checkpoint, devices, imports, objects, optim, processes
from utils.errors import ConfigError
from utils.util import named


def training(config):
    """The training data; ConfigError where it gives no batch."""
    made = _loader(config, "data_loader", config.init_obj("data_loader"))
    if (shared := min(made.batch_size or made.n_samples or 1, made.n_samples or math.inf)) < processes.size():
        why = f"{shared} examples in a batch for {processes.size()} processes, so that some would have none"
        raise ConfigError(f"{config.place('data_loader.args.batch_size')}: {why}. Give more, or start fewer processes.")
    made.seed = config["seed"]
    learned = (config.checkpoint or {}).get("data")
    if learned is not None and hasattr(made, "load_state_dict"):  # before it learns anew from data that have changed
        made.load_state_dict(learned)
    return made.first_batches(config["trainer"]["overfit"]) if config["trainer"]["overfit"] else made


def validation(config, data_loader):
    """The validation data: of its own section, one or {name: loader}, or split off `data_loader`; None without."""
    sets, batches = config.get("valid_data_loader"), config["trainer"]["overfit"]
    if batches:
        first = data_loader.first_batches(batches)
        return dict.fromkeys(sets, first) if sets and "type" not in sets else first
    if sets is None:
        return data_loader.split_validation()
    made = config.init_obj("valid_data_loader")
    for name, loader in named(made).items():
        _loader(config, f"valid_data_loader.{name}".rstrip("."), loader).evaluating()
        if hasattr(data_loader, "state_dict") and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(data_loader.state_dict())  # a vocabulary, statistics: of the training data alone
    return made


def _loader(config, path, made):
    _expect(made, BaseDataLoader, config.place(path))
    if len(set(there := processes.gather(made.n_samples))) > 1:
        raise ConfigError(f"{config.place(path)}: {there} examples, by process. Every process reads the same set.")
    if hasattr(made.dataset, "__len__") and len(made) == 0:
        argument = "drop_last" if made.drop_last and made.n_samples else "dataset"
        why = f"{made.n_samples} samples give no batch of batch_size {made.batch_size}"
        raise ConfigError(f"{config.place(f'{path}.args.{argument}')}: {why}. Give a smaller one, or more data.")
    return made


def _expect(made, kind, place):
    if not isinstance(made, kind):
        raise ConfigError(f"{place}: a {kind.__name__} is wanted, and this gave a {type(made).__name__}.")
    return made


def model(config):
    """The model, in the memory format of `trainer.channels_last`."""
    made = _expect(config.init_obj("arch"), torch.nn.Module, config.place("arch"))
    if any(map(torch.nn.parameter.is_lazy, made.parameters())):
        raise ConfigError(f"{config.place('arch')}: lazy layers have no weights to train yet; give them their sizes.")
    return made.to(memory_format=devices.memory_format(config["trainer"]["channels_last"]))


def wrapped(config, made, device):
    """The model as the loop calls it, on its device: compiled, and in what `parallel` names."""
    config.get_logger("trainer", config["trainer"]["verbosity"])  # by which its functions speak
    imports.extra("together", "check_alike")(made, "At the start")  # before each keeps its own part of it
    if compile_with := config["trainer"]["compile"]:
        arguments, path = compile_with if isinstance(compile_with, dict) else {}, "trainer.compile"
        # What is wrong with the arguments is found by this one.
        objects.make(torch.compile, (made,), arguments, path, lambda p: config.place(p.replace(".args", "")))
        made.compile(**arguments)  # in place: its weights keep their names
    if config["n_gpu"] not in (None, 0, 1) and config["parallel"]["type"] == "auto" and processes.size() == 1:
        return parallel.data_parallel(made, device, config["n_gpu"])
    return config.init_obj("parallel", None, made, device)


def criterion(config, device):
    """The loss, its own tensors (class weights) on the device; of several by name their sum, which logs each, too."""
    made = config.init_obj("loss")
    if isinstance(made, dict):
        made = Losses(made, {name: spec.get("weight", 1.0) for name, spec in config["loss"].items()})
    return made.to(device) if isinstance(made, torch.nn.Module) else made


class Losses(torch.nn.ModuleList):
    """Several criteria, {name: (output, target) → mean over examples}, as one whose "loss" is their weighted sum."""

    def __init__(self, criteria, weights):
        super().__init__(one for one in criteria.values() if isinstance(one, torch.nn.Module))
        self.criteria, self.weights = criteria, weights

    def forward(self, output, target):
        parts = {name: criterion(output, target) for name, criterion in self.criteria.items()}
        if counted := [name for name, part in parts.items() if isinstance(part, tuple)]:
            raise ConfigError(f"loss.{counted[0]}: gave (sum, count); of several losses each has to give a mean.")
        return {"loss": sum(self.weights[name] * part for name, part in parts.items()), **parts}


def metrics(config, device):
    """The metrics, those with state (torchmetrics) on the device."""
    return [made.to(device) if hasattr(made, "to") else made for made in config.init_obj("metrics")]


def optimizer(config, made):
    """The optimizer of the parameters that learn; or {name: optimizer}, each of those its `params` pattern matches."""

    made = checkpoint.unwrapped(made)

    def one(path, spec):
        parameters = optim.trainable(made, spec.get("params", "*"), config.place(f"{path}.params"))
        return _expect(config.init_obj(path, None, parameters), torch.optim.Optimizer, config.place(path))

    optimizers = _each(config, "optimizer", one)
    moved = {id(p) for one in named(optimizers).values() for group in one.param_groups for p in group["params"]}
    if left := [name for name, p in made.named_parameters() if p.requires_grad and id(p) not in moved]:
        said = f"optimizer: none moves {', '.join(left[:8])}; freeze them or widen a 'params'."
        config.get_logger("train").warning(said)
    return optimizers


def schedule(config, optimizers, data_loader):
    """The learning rate's schedule, told of the run's length where its args leave that out; or {name: schedule}."""
    settings = config["trainer"]
    updates, per_epoch = planned_updates(settings, data_loader)

    def one(path, spec):
        moved = optimizers[path.partition(".")[2]] if isinstance(optimizers, dict) else optimizers
        found, given, interval = config.find(path), spec["args"], spec.get("interval", "epoch")
        steps = updates if interval == "step" else settings["epochs"]
        rates, mode = [group["lr"] for group in moved.param_groups], settings["monitor"].partition(" ")[0]
        known = optim.planned_arguments(found, given, steps, per_epoch, rates, mode)
        made = _expect(config.init_obj(path, None, moved, **known), LRScheduler, config.place(path))
        made.interval = interval  # what the stepper counts for it
        if steps and steps > getattr(made, "total_steps", steps):
            why = f"{made.total_steps} {interval}s, for a run of {steps}. Leave its length out, and it is filled in."
            argument = "total_steps" if "total_steps" in given else "epochs"
            raise ConfigError(f"{config.place(f'{path}.args.{argument}')}: a schedule of {why}")
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

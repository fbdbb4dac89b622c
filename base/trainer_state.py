"""What of a trainer is saved and put back, and which changes of its config a resumed run can take."""

import torch

from base.base_data_loader import BaseDataLoader
from utils import checkpoint, imports, optim, processes, seeds
from utils.errors import CheckpointError, shown
from utils.util import as_plain, named

OWN = ("model", "optimizer", "lr_scheduler")  # attributes with a place of their own in a checkpoint


def state_of(trainer):
    """The content of a checkpoint. Called on every process, since sums and random states are gathered."""
    loader, model, averages = getattr(trainer, "data_loader", None), trainer.model, trainer._averages()
    weights = _state_of(model)
    content = {
        "format": checkpoint.FORMAT,
        "arch": checkpoint.class_name(model),
        "epoch": trainer.epoch,
        "step": trainer.step,
        "state_dict": {**weights, **averages},
        **({"train_state_dict": weights} if averages else {}),
        "optimizer": _state_of(trainer.optimizer),
        "lr_scheduler": _state_of(getattr(trainer, "lr_scheduler", None)),
        "objects": {name: _state_of(value) for name, value in _others(trainer).items()},
        "monitor": trainer.monitor,
        "monitor_best": trainer.mnt_best,
        "counters": {name: getattr(trainer, name) for name in trainer.COUNTERS},
        "finished": bool(trainer._finished()),
        "data": loader.state_dict() if isinstance(loader, BaseDataLoader) and hasattr(loader, "state_dict") else None,
        "examples": {name: loader.n_samples for name, loader in trainer._loaders().items()},
        "random": processes.gather(seeds.state()),
        "processes": processes.process_count(),
        "config": as_plain(trainer._parsed.config),
    }
    if getattr(model, "saves_in_parts", False):
        return imports.optional("extras.sharded", "parallel.args.sharded").written(content, trainer.checkpoint_dir)
    content = checkpoint.plain(content, lambda tensor, path: processes.whole(tensor))
    return model.gathered(content, trainer.optimizer) if hasattr(model, "gathered") else content


def restore(trainer, content, path):
    """Put the weights and the epoch back; `restore_rest` does what a subclass may bring only later."""
    if changes := trainer._parsed.changes:
        imports.optional("extras.changes", f"a change of {changes[0][0]}").refuse(changes, content, trainer._parsed)
    for name, saved, now in changes:
        trainer.logger.info(f"changed  {name}: {shown(saved)} → {shown(now)}")
    checkpoint.load_weights(trainer.model, content.get("train_state_dict", content["state_dict"]), path)
    trainer.epoch, trainer.step = content["epoch"], content.get("step", 0)
    trainer.start_epoch = trainer.epoch + 1
    if content.get("monitor", trainer.monitor) == trainer.monitor:
        trainer.mnt_best = content["monitor_best"]
    if (before := content.get("processes", processes.process_count())) != processes.process_count():
        said = "each batch is the same, dealt anew; each process draws its dropout anew"
        trainer.logger.info(f"changed  processes: {before} → {processes.process_count()}: {said}")
    trainer.logger.info(f"resumed  {path}: epoch {trainer.epoch}{f', step {trainer.step}' if trainer.step else ''}")


def restore_rest(trainer, content, path):
    """What the subclass set after BaseTrainer's own __init__."""
    fresh = [dict(group) for optimizer in named(trainer.optimizer).values() for group in optimizer.param_groups]
    _restore(trainer.optimizer, content["optimizer"], "optimizer", path)
    if changes := trainer._parsed.changes:
        imports.optional("extras.changes", f"a change of {changes[0][0]}").apply_to_optimizers(changes, trainer, fresh)
    schedule = getattr(trainer, "lr_scheduler", None)
    if schedule is not None and content.get("lr_scheduler") is not None:
        imports.extra("changes", "refuse_stretching")(schedule, content["lr_scheduler"])
        _restore(schedule, content["lr_scheduler"], "lr_scheduler", path)
    for name, value in _others(trainer).items():
        if name in content.get("objects", {}):
            _restore(value, content["objects"][name], name, path)
    for name in content.get("counters", {}).keys() & set(trainer.COUNTERS):
        setattr(trainer, name, content["counters"][name])
    if content.get("monitor", trainer.monitor) != trainer.monitor:
        trainer.not_improved = 0
    for name, loader in trainer._loaders().items():
        if content.get("data") is not None and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(content["data"])
        before = content.get("examples", {}).get(name, loader.n_samples)
        if before != loader.n_samples:
            why = f"{before} examples when it was saved, {loader.n_samples} now, so that a split is another one"
            trainer.logger.warning(f"{name}: {why}: some that were trained on may now validate. Start a new run.")
    with torch.no_grad():
        for name, average in trainer._averages().items():
            average.copy_(processes.laid_out(content["state_dict"][name], average))


def set_random(trainer, states):
    """Go on with the random numbers of this process; one that has none yet draws its own: one seed made the weights."""
    number = processes.process_number()
    if number < len(states):
        seeds.set_state(states[number])
    elif processes.size() > 1:
        drawn = seeds.example_seeds(trainer._parsed.get("seed") or 0, trainer.step, 1, number)
        seeds.seed_everything(int(drawn[0]))


def _others(trainer):
    """What else on the trainer has a state: whatever a subclass set, by its attribute's name."""
    return {name: value for name, value in vars(trainer).items() if name not in OWN and _has_state(value)}


def _has_state(value):
    if isinstance(value, (dict, list, tuple)):
        inside = [one for one in named(value).values() if one is not None]
        return bool(inside) and all(map(_has_state, inside))
    methods = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    return methods and not isinstance(value, (BaseDataLoader, type))


def _state_of(value):
    if value is None or not (isinstance(value, (dict, list, tuple)) or hasattr(value, "state_dict")):
        return None
    if isinstance(value, (dict, list, tuple)):
        inside = {name: _state_of(item) for name, item in named(value).items()}
        return inside if isinstance(value, dict) else list(inside.values())
    state = (checkpoint.unwrapped(value) if isinstance(value, torch.nn.Module) else value).state_dict()
    if isinstance(state, dict) and any(map(_has_state, state.values())):  # a schedule that holds another
        state = {name: _state_of(inner) if _has_state(inner) else inner for name, inner in state.items()}
    return state


def _restore(value, state, name, path):
    if isinstance(value, (dict, list, tuple)):
        if len(value) != len(state) or (isinstance(value, dict) and value.keys() != state.keys()):
            there, here = (list(one) if isinstance(one, dict) else len(one) for one in (state, value))
            raise CheckpointError(f"{path}: holds {there} of {name}, and this run has {here}.")
        for key, one in named(value).items():
            _restore(one, state[key], f"{name}.{key}", path)
    elif isinstance(value, torch.nn.Module):
        checkpoint.load_weights(value, state, path)
    elif isinstance(value, torch.optim.Optimizer):
        try:
            optim.load_state(value, state)
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path}: its state of {name} does not fit this run: {error}") from error
    elif value is not None and state is not None:
        inner = {key: one for key, one in dict(value.state_dict()).items() if _has_state(one)}
        for key, one in inner.items():
            _restore(one, state[key], f"{name}.{key}", path)
        value.load_state_dict({**state, **inner})

"""Small forks of this template's ancestor, one for each way in which forks differ from it; all of our own making."""

import copy
import logging
import math
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from base import BaseDataLoader, BaseModel, BaseTrainer
from logger import TensorboardWriter
from parse_config import ConfigParser
from utils import MetricTracker, inf_loop
from utils.optim import lean

COUNT, CLASSES = 40, 3
Adam = lean(torch.optim.Adam)  # as init_obj gives it; torch's own takes two seconds to load what it doesn't need


class Points(Dataset):
    """Points of which the largest coordinate is the class; a little off each time one is read."""

    def __init__(self):
        generator = np.random.RandomState(5)
        self.points = torch.from_numpy(generator.rand(COUNT, 4).astype("float32"))
        self.labels = self.points[:, :CLASSES].argmax(dim=1)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.points[index] + 0.1 * torch.rand(4), self.labels[index]


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))

    def forward(self, points):
        return self.layers(points)


def accuracy(output, target):
    return (output.argmax(dim=1) == target).float().mean().item()


def top_two(output, target):
    return (output.topk(2, dim=1).indices == target[:, None]).any(dim=1).float().mean().item()


def config(saved, **trainer):
    """Sections as in a fork's config.json, runs going to `saved`."""
    settings = {"epochs": 2, "save_dir": str(saved), "save_period": 1, "verbosity": 2, "monitor": "min val_loss"}
    return {
        "name": "fork",
        "n_gpu": 0,
        "arch": {"type": "Net", "args": {}},
        "metrics": ["accuracy", "top_two"],
        "trainer": {**settings, "early_stop": 10, "tensorboard": False, **trainer},
    }


class Loop:
    """A loop over batches as of 2019-09: the device is the base's, numbers are kept in trackers."""

    def set_up(self, config, data_loader, valid_data_loader=None, lr_scheduler=None, len_epoch=None):
        self.config = config
        self.len_epoch = len_epoch or len(data_loader)
        self.data_loader = inf_loop(data_loader) if len_epoch else data_loader
        self.valid_data_loader = valid_data_loader
        self.lr_scheduler = lr_scheduler
        names = [metric.__name__ for metric in self.metric_ftns]
        self.train_metrics = MetricTracker("loss", *names, writer=self.writer)
        self.valid_metrics = MetricTracker("loss", *names, writer=self.writer)

    def _train_epoch(self, epoch):
        self.model.train()
        self.train_metrics.reset()
        for batch, (points, labels) in enumerate(islice(self.data_loader, self.len_epoch)):
            points, labels = points.to(self.device), labels.to(self.device)
            output = self.model(points)
            loss = self.criterion(output, labels)
            self._move(loss)
            self.writer.set_step((epoch - 1) * self.len_epoch + batch)
            self._note(self.train_metrics, loss, output, labels)
        log = self.train_metrics.result()
        if self.valid_data_loader is not None:
            log.update({f"val_{name}": value for name, value in self._valid_epoch(epoch).items()})
        self._schedule(log)
        return log

    def _move(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def _schedule(self, log):
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    @torch.no_grad()
    def _valid_epoch(self, epoch):
        self.model.eval()
        self.valid_metrics.reset()
        for batch, (points, labels) in enumerate(self.valid_data_loader):
            output = self.model(points.to(self.device))
            self.writer.set_step((epoch - 1) * len(self.valid_data_loader) + batch, "valid")
            self._note(self.valid_metrics, self.criterion(output, labels), output, labels)
        return self.valid_metrics.result()

    def _note(self, tracker, loss, output, labels):
        tracker.update("loss", loss.item())
        for metric in self.metric_ftns:
            if metric.__name__ in tracker:
                tracker.update(metric.__name__, metric(output, labels))


class Tracking(Loop, BaseTrainer):
    """A fork of 2019-09."""

    def __init__(self, model, criterion, metric_ftns, optimizer, config, *others, **more):
        super().__init__(model, criterion, metric_ftns, optimizer, config)
        self.set_up(config, *others, **more)


class Scored(Tracking):
    """Its validation gives what `SCORES` has for the epoch."""

    SCORES = (0.5, 0.4, 0.3, 0.2)

    def _valid_epoch(self, epoch):
        return {**super()._valid_epoch(epoch), "score": self.SCORES[epoch - 1]}


class ResumedByItself(Tracking):
    """Gets no parser, and takes a checkpoint up by the base's method."""

    def __init__(self, *arguments, resume=None, **more):
        super().__init__(*arguments, **more)
        if resume is not None:
            self._resume_checkpoint(resume)


class OnPlateau(Tracking):
    """Clips gradients and steps a schedule on the validation's number, which is set behind the base's __init__."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        # No loss falls by ten: every epoch but the first is a bad one, and patience ends with the second.
        how = {"patience": 0, "threshold": 10, "threshold_mode": "abs"}
        self.lr_scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, **how)

    def _move(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()

    def _schedule(self, log):
        self.lr_scheduler.step(log["val_loss"])


class Scheduled(Tracking):
    """Steps the schedule that it gets as a function of its optimizer."""

    def __init__(self, *arguments, schedule, **more):
        super().__init__(*arguments, **more)
        self.lr_scheduler = schedule(self.optimizer)


class Halving:
    """A schedule without a state."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        for group in self.optimizer.param_groups:
            group["lr"] /= 2


class WarmingUp(torch.optim.lr_scheduler.LRScheduler):
    """Holds another schedule, which it steps."""

    def __init__(self, optimizer):
        self.inner = decay(optimizer)
        super().__init__(optimizer)

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self):
        super().step()
        if self.last_epoch > 0:
            self.inner.step()


def in_sequence(optimizer):
    """Torch's own schedule that holds others: the second of them lowers the rate in the second epoch."""
    inner = [torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0), decay(optimizer, every=1)]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, inner, milestones=[1])


class Averaged(Tracking):
    """Keeps an average of its weights, in an object that makes a state of its parts' states itself."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.average = Average(self.model)

    def _move(self, loss):
        super()._move(loss)
        self.average.update(self.model)


class Average:
    def __init__(self, model):
        self.model, self.updates = copy.deepcopy(model), 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        for mean, weight in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.lerp_(weight, 0.1)

    def state_dict(self):
        return {"model": self.model.state_dict(), "updates": self.updates}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.updates = state["updates"]


class Of2018(BaseTrainer):
    """2018's argument order; loss and metrics under the names of then; numbers of the metrics in lists."""

    def __init__(self, model, loss, metrics, optimizer, resume, config, data_loader, valid, train_logger=None):
        super().__init__(model, loss, metrics, optimizer, resume, config, train_logger)
        self.set_up(config, loss, metrics, data_loader, valid)

    def set_up(self, config, loss, metrics, data_loader, valid):
        self.config, self.loss, self.metrics = config, loss, metrics
        self.data_loader, self.valid_data_loader = data_loader, valid
        self.returned = []

    def _train_epoch(self, epoch):
        self.model.train()
        loss, metrics = self._pass(self.data_loader, self.optimizer)
        self.model.eval()
        with torch.no_grad():
            val_loss, val_metrics = self._pass(self.valid_data_loader)
        log = {"loss": loss, "metrics": metrics, "val_loss": val_loss, "val_metrics": val_metrics}
        self.returned.append(dict(log))
        return log

    def _pass(self, loader, optimizer=None):
        losses, measured = [], []
        for points, labels in loader:
            output = self.model(points)
            loss = self.loss(output, labels)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
            measured.append([metric(output, labels) for metric in self.metrics])
        return float(np.mean(losses)), np.mean(measured, axis=0).tolist()


class Of2018ByName(Of2018):
    """The same, its base's arguments given by name."""

    def __init__(self, model, loss, metrics, optimizer, resume, config, data_loader, valid, train_logger=None):
        more = {"resume": resume, "config": config, "train_logger": train_logger}
        BaseTrainer.__init__(self, model, loss, metrics, optimizer, **more)
        self.set_up(config, loss, metrics, data_loader, valid)


def generator():
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))


def discriminator():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))


def adam(model):
    return Adam(model.parameters(), lr=0.01)


def decay(optimizer, every=2):
    return torch.optim.lr_scheduler.StepLR(optimizer, every, 0.1)


class Gan(BaseTrainer):
    """Two networks, moved in turn; torch's own loader. A subclass says where they and their optimizers are."""

    def _train_epoch(self, epoch):
        (maker, judge), (by_maker, by_judge), schedules = self.parts()
        sums = {"loss_g": 0.0, "loss_d": 0.0}
        for points, _ in self.data_loader:
            made, real = maker(torch.randn(len(points), 2)), torch.ones(len(points), 1)
            loss_d = self.criterion(judge(points), real) + self.criterion(judge(made.detach()), 1 - real)
            by_judge.zero_grad()
            loss_d.backward()
            by_judge.step()
            loss_g = self.criterion(judge(made), real)
            by_maker.zero_grad()
            loss_g.backward()
            by_maker.step()
            sums["loss_g"] += loss_g.item()
            sums["loss_d"] += loss_d.item()
        for schedule in schedules:
            schedule.step()
        return sums


class GanOfAttributes(Gan):
    """The generator is the base's model; the rest is set behind the base's __init__."""

    def __init__(self, config, data_loader):
        model = generator()
        super().__init__(model, nn.BCEWithLogitsLoss(), None, adam(model), config)
        self.data_loader = data_loader
        self.discriminator = discriminator()
        self.optimizer_d = adam(self.discriminator)
        self.schedule_g, self.schedule_d = decay(self.optimizer), decay(self.optimizer_d)

    def parts(self):
        return (
            (self.model, self.discriminator),
            (self.optimizer, self.optimizer_d),
            (self.schedule_g, self.schedule_d),
        )


class GanOfDicts(Gan):
    """Names → optimizers and schedules."""

    def __init__(self, config, data_loader):
        model = nn.ModuleDict({"g": generator(), "d": discriminator()})
        optimizers = {name: adam(part) for name, part in model.items()}
        super().__init__(model, nn.BCEWithLogitsLoss(), None, optimizers, config)
        self.data_loader = data_loader
        self.lr_scheduler = {name: decay(optimizer) for name, optimizer in self.optimizer.items()}

    def parts(self):
        return self.model.values(), self.optimizer.values(), self.lr_scheduler.values()


class GanOfLists(Gan):
    """Lists of networks, optimizers and schedules beside the base's."""

    def __init__(self, config, data_loader):
        networks = [generator(), discriminator()]
        optimizers = [adam(network) for network in networks]
        super().__init__(networks[0], nn.BCEWithLogitsLoss(), None, optimizers[0], config)
        self.data_loader = data_loader
        self.networks, self.optimizers = networks, optimizers
        self.lr_scheduler = [decay(optimizer) for optimizer in optimizers]

    def parts(self):
        return self.networks, self.optimizers, self.lr_scheduler


class GanWithOneSchedule(GanOfAttributes):
    """Its discriminator's rate stays: the schedules' dict has None there."""

    def __init__(self, config, data_loader):
        super().__init__(config, data_loader)
        del self.schedule_g, self.schedule_d
        self.schedules = {"g": decay(self.optimizer), "d": None}

    def parts(self):
        return (self.model, self.discriminator), (self.optimizer, self.optimizer_d), [self.schedules["g"]]


class FoldLoader(BaseDataLoader):
    """Validates on every `folds`-th example from the `fold`-th on; both samplers are random ones, as they once were."""

    def __init__(self, fold, folds):
        self.fold, self.folds = fold, folds
        super().__init__(Points(), 8, shuffle=True, validation_split=1 / folds)

    def _split_sampler(self, split):
        valid = list(range(self.fold, COUNT, self.folds))
        train = [i for i in range(COUNT) if i not in valid]
        self.n_samples = len(train)
        return SubsetRandomSampler(train), SubsetRandomSampler(valid)


class OwnParser:
    """A parser that a fork keeps, with nothing beyond what the template's trainer took from it."""

    def __init__(self, sections, resume=None, run_id="run"):
        self.config = sections
        self.resume = resume
        self.save_dir = Path(sections["trainer"]["save_dir"], "models", sections["name"], run_id)
        self.log_dir = Path(sections["trainer"]["save_dir"], "log", sections["name"], run_id)

    def __getitem__(self, name):
        return self.config[name]

    def get_logger(self, name, verbosity=2):
        return logging.getLogger(name)


class OwnBase:
    """A BaseTrainer that a fork keeps: it seeds every epoch, and saves and loads by itself, the parser included."""

    def __init__(self, model, criterion, metric_ftns, optimizer, config):
        settings = config["trainer"]
        self.config = config
        self.logger = config.get_logger("trainer", settings["verbosity"])
        self.device = torch.device("cpu")
        self.model, self.optimizer = model.to(self.device), optimizer
        self.criterion, self.metric_ftns = criterion, metric_ftns
        self.mnt_best, self.start_epoch = math.inf, 1
        self.writer = TensorboardWriter(config.log_dir, self.logger, settings["tensorboard"])
        if config.resume is not None:
            self._resume_checkpoint(config.resume)

    def train(self):
        for epoch in range(self.start_epoch, self.config["trainer"]["epochs"] + 1):
            torch.manual_seed(epoch)
            log = {"epoch": epoch, **self._train_epoch(epoch)}
            self.mnt_best = min(self.mnt_best, log["val_loss"])
            content = {
                "epoch": epoch,
                "log": log,
                "state_dict": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "monitor_best": self.mnt_best,
                "config": self.config,
            }
            torch.save(content, str(self.config.save_dir / f"checkpoint-epoch{epoch}.pth"))

    def _resume_checkpoint(self, path):
        content = torch.load(str(path))
        assert content["config"]["arch"] == self.config["arch"]
        self.start_epoch = content["epoch"] + 1
        self.mnt_best = content["monitor_best"]
        self.model.load_state_dict(content["state_dict"])
        self.optimizer.load_state_dict(content["optimizer"])


class OnOwnBase(Loop, OwnBase):
    def __init__(self, model, criterion, metric_ftns, optimizer, config, *others, **more):
        super().__init__(model, criterion, metric_ftns, optimizer, config)
        self.set_up(config, *others, **more)


def parts():
    """Model, criterion, metrics and optimizer, the same ones each time."""
    torch.manual_seed(7)
    model = Net()
    return model, nn.CrossEntropyLoss(), [accuracy, top_two], adam(model)


def trained(config, trainer=Tracking, loader=None, valid=None, **more):
    """A fork's train.py from its config on; the trainer."""
    loader = loader or BaseDataLoader(Points(), 8, True, 0.25, 0)
    valid = valid or loader.split_validation()
    made = trainer(*parts(), config, loader, valid, **more)
    made.train()
    return made


def trained_2018(sections, resume=None, trainer=Of2018, train_logger=None):
    """The same in 2018, when the config was the dict that json or a checkpoint gave."""
    loader = BaseDataLoader(Points(), 8, True, 0.25, 0)
    made = trainer(*parts(), resume, sections, loader, loader.split_validation(), train_logger)
    made.train()
    return made


def trained_gan(sections, resume=None, trainer=GanOfAttributes):
    """The same with torch's own loader, which draws from the generators that all else draws from."""
    torch.manual_seed(7)
    made = trainer(ConfigParser(sections, resume), DataLoader(Points(), 8, shuffle=True))
    made.train()
    return made

"""A small project written as the forks of this template are, with what they keep in several modules in one file."""

import argparse
import collections
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from base import BaseDataLoader, BaseModel, BaseTrainer
from parse_config import ConfigParser
from utils import MetricTracker, inf_loop, prepare_device

here = sys.modules[__name__]


class Digits(torch.utils.data.Dataset):
    """Squares of noise whose brightest row is the class; a little more noise each time one is read."""

    def __init__(self, count):
        generator = np.random.RandomState(3)
        self.labels = generator.randint(0, 4, count)
        self.images = generator.rand(count, 1, 4, 4).astype("float32")
        self.images[np.arange(count), 0, self.labels] += 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return torch.from_numpy(self.images[index]) + 0.1 * torch.rand(1), int(self.labels[index])


class DigitLoader(BaseDataLoader):
    def __init__(self, data_dir, batch_size, shuffle=True, validation_split=0.0, num_workers=1, training=True):
        self.data_dir = data_dir
        self.dataset = Digits(60 if training else 20)
        super().__init__(self.dataset, batch_size, shuffle, validation_split, num_workers)


class DigitModel(BaseModel):
    def __init__(self, num_classes=4):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, kernel_size=3, padding=1)
        self.drop = nn.Dropout2d()
        self.fc = nn.Linear(6 * 4 * 4, num_classes)

    def forward(self, x):
        x = self.drop(F.relu(self.conv(x)))
        return F.log_softmax(self.fc(x.view(x.size(0), -1)), dim=1)


def nll_loss(output, target):
    return F.nll_loss(output, target)


def accuracy(output, target):
    with torch.no_grad():
        return (torch.argmax(output, dim=1) == target).sum().item() / len(target)


def top_k_acc(output, target, k=3):
    with torch.no_grad():
        return sum((torch.topk(output, k, dim=1)[1][:, i] == target).sum().item() for i in range(k)) / len(target)


class DigitTrainer(BaseTrainer):
    """Its own loop, its own validation, its own steps of the schedule."""

    def __init__(
        self,
        model,
        criterion,
        metric_ftns,
        optimizer,
        config,
        device,
        data_loader,
        valid_data_loader=None,
        lr_scheduler=None,
        len_epoch=None,
    ):
        super().__init__(model, criterion, metric_ftns, optimizer, config)
        self.config = config
        self.device = device
        self.data_loader = data_loader
        if len_epoch is None:
            self.len_epoch = len(self.data_loader)
        else:
            self.data_loader = inf_loop(data_loader)
            self.len_epoch = len_epoch
        self.valid_data_loader = valid_data_loader
        self.do_validation = self.valid_data_loader is not None
        self.lr_scheduler = lr_scheduler
        self.log_step = int(np.sqrt(data_loader.batch_size))
        names = [metric.__name__ for metric in self.metric_ftns]
        self.train_metrics = MetricTracker("loss", *names, writer=self.writer)
        self.valid_metrics = MetricTracker("loss", *names, writer=self.writer)

    def _train_epoch(self, epoch):
        self.model.train()
        self.train_metrics.reset()
        for batch_idx, (data, target) in enumerate(self.data_loader):
            data, target = data.to(self.device), target.to(self.device)
            self.optimizer.zero_grad()
            output = self.model(data)
            loss = self.criterion(output, target)
            loss.backward()
            self.optimizer.step()

            self.writer.set_step((epoch - 1) * self.len_epoch + batch_idx)
            self.train_metrics.update("loss", loss.item())
            for metric in self.metric_ftns:
                self.train_metrics.update(metric.__name__, metric(output, target))
            if batch_idx % self.log_step == 0:
                self.logger.debug(f"Train epoch: {epoch} {self._progress(batch_idx)} Loss: {loss.item():.6f}")
                self.writer.add_image("input", data[0].cpu())
            if batch_idx == self.len_epoch - 1:
                break
        log = self.train_metrics.result()
        if self.do_validation:
            log.update(**{"val_" + name: value for name, value in self._valid_epoch(epoch).items()})
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        return log

    def _valid_epoch(self, epoch):
        self.model.eval()
        self.valid_metrics.reset()
        with torch.no_grad():
            for batch_idx, (data, target) in enumerate(self.valid_data_loader):
                data, target = data.to(self.device), target.to(self.device)
                output = self.model(data)
                loss = self.criterion(output, target)
                self.writer.set_step((epoch - 1) * len(self.valid_data_loader) + batch_idx, "valid")
                self.valid_metrics.update("loss", loss.item())
                for metric in self.metric_ftns:
                    self.valid_metrics.update(metric.__name__, metric(output, target))
        for name, parameter in self.model.named_parameters():
            self.writer.add_histogram(name, parameter, bins="auto")
        return self.valid_metrics.result()

    def _progress(self, batch_idx):
        if hasattr(self.data_loader, "n_samples"):
            current, total = batch_idx * self.data_loader.batch_size, self.data_loader.n_samples
        else:
            current, total = batch_idx, self.len_epoch
        return f"[{current}/{total} ({100.0 * current / total:.0f}%)]"


def main(config, len_epoch=None):
    torch.manual_seed(123)
    np.random.seed(123)
    logger = config.get_logger("train")
    data_loader = config.init_obj("data_loader", here)
    valid_data_loader = data_loader.split_validation()
    model = config.init_obj("arch", here)
    logger.info(model)

    device, device_ids = prepare_device(config["n_gpu"])
    model = model.to(device)
    if len(device_ids) > 1:
        model = torch.nn.DataParallel(model, device_ids=device_ids)

    criterion = getattr(here, config["loss"])
    metrics = [getattr(here, name) for name in config["metrics"]]
    trainable_params = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = config.init_obj("optimizer", torch.optim, trainable_params)
    lr_scheduler = config.init_obj("lr_scheduler", torch.optim.lr_scheduler, optimizer)
    trainer = DigitTrainer(
        model,
        criterion,
        metrics,
        optimizer,
        config=config,
        device=device,
        data_loader=data_loader,
        valid_data_loader=valid_data_loader,
        lr_scheduler=lr_scheduler,
        len_epoch=len_epoch,
    )
    trainer.train()
    return trainer


def configure():
    args = argparse.ArgumentParser(description="PyTorch Template")
    args.add_argument("-c", "--config", default=None, type=str, help="config file path (default: None)")
    args.add_argument("-r", "--resume", default=None, type=str, help="path to latest checkpoint (default: None)")
    args.add_argument("-d", "--device", default=None, type=str, help="indices of GPUs to enable (default: all)")
    CustomArgs = collections.namedtuple("CustomArgs", "flags type target")
    options = [
        CustomArgs(["--lr", "--learning_rate"], type=float, target=("optimizer", "args", "lr")),
        CustomArgs(["--ep"], type=int, target="trainer;epochs"),
    ]
    return ConfigParser.from_args(args, options)

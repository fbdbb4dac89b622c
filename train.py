"""Train what a config describes.

python train.py -c config.json                             train
python train.py -c config.json trainer.epochs=20 --lr 0.01  change any key
python train.py -r saved/mnist/RUN/latest.pth              go on with a run
"""

import argparse
import sys
from collections import namedtuple

from parse_config import ConfigParser
from utils.errors import exit_code

Option = namedtuple("Option", "flags type target")
OPTIONS = (Option(["--lr"], float, "optimizer;args;lr"), Option(["--bs"], int, "data_loader;args;batch_size"))


def main(config):
    """Build every part in the order the data meets them, and train; returns the best epoch's numbers."""
    config.check()
    from utils import build, devices, processes

    device = devices.start(config)
    try:
        data_loader = build.training(config)
        valid_data_loader = build.validation(config, data_loader)
        model = build.model(config, device)
        criterion = build.criterion(config, device)
        metrics = build.metrics(config, device)
        optimizer = build.optimizer(config, model)
        lr_scheduler = build.schedule(config, optimizer, data_loader)
        trainer = config.init_obj(
            "trainer",
            None,
            build.wrapped(config, model, device),
            criterion,
            metrics,
            optimizer,
            config=config,
            device=device,
            data_loader=data_loader,
            valid_data_loader=valid_data_loader,
            lr_scheduler=lr_scheduler,
        )
        return trainer.train()
    finally:
        processes.leave()


def parser():
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-c", "--config", help="the config, JSON or YAML")
    made.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="change a key of the config, as in optimizer.args.lr=0.01"
    )
    made.add_argument(
        "-r", "--resume", metavar="CHECKPOINT", help="go on from a checkpoint, or from the 'latest' run, or 'auto'"
    )
    made.add_argument("-d", "--device", help="indices of the GPUs to use, as in 0,1")
    made.add_argument("--run-id", help="name of the run's folder; default: the time")
    made.add_argument("--trust", action="store_true", help="let a checkpoint's own config name any function")
    made.add_argument("--traceback", action="store_true", help="show where in the code a mistake was found")
    return made


def run():
    """The whole command; what it raises, `exit_code` tells."""
    main(ConfigParser.from_args(parser(), OPTIONS))


if __name__ == "__main__":
    sys.exit(exit_code(run, traceback="--traceback" in sys.argv))

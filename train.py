"""Train what a config describes.

python train.py -c config.json                             train
python train.py -c config.json trainer.epochs=20 --lr 0.01  change any key
python train.py -r saved/mnist/RUN/latest.pth              go on with a run
"""

import sys

from parse_config import ConfigParser
from utils import command_line, imports
from utils.errors import exit_code

OPTIONS = (
    (["--lr"], float, "optimizer;args;lr"),
    (["--bs"], int, "data_loader;args;batch_size"),
    (["--overfit"], int, "trainer;overfit"),
)


def main(config, then=lambda trainer: trainer.train()):
    """Build every part in the order the data meets them, and train; returns the best epoch's numbers.

    then: what is done with the trainer once it is complete, and whose result is returned.
    """
    config.check()
    from trainer import build
    from utils import devices

    device = devices.start(config)
    data_loader = build.training(config)
    valid_data_loader = build.validation(config, data_loader)
    model = build.wrapped(config, build.model(config), device)
    criterion = build.criterion(config, device)
    metrics = build.metrics(config, device)
    optimizer = build.optimizer(config, model)
    lr_scheduler = build.schedule(config, optimizer, data_loader)
    parts = (model, criterion, metrics, optimizer, config)
    more = {"device": device, "data_loader": data_loader, "valid_data_loader": valid_data_loader}
    return then(config.init_obj("trainer", None, *parts, **more, lr_scheduler=lr_scheduler))


def parser():
    """The command line."""
    made = command_line.parser(__doc__, help="go on from a checkpoint or run, from the 'latest' run, or 'auto'")
    made.add_argument("--dry-run", action="store_true", help="build all, try one batch, show the layers; write nothing")
    made.add_argument("--folds", type=int, metavar="K", help="train K times, each time without a K-th; print the means")
    made.add_argument("--run-id", help="name of the run's folder; default: the time")
    return made


def run():
    """The whole command; what it raises, `exit_code` tells."""
    config = ConfigParser.from_args(parser(), OPTIONS)
    if config.asked.check:
        imports.optional("extras.doctor", "--check").show(config)
    elif config.asked.dry_run:
        main(config, imports.optional("extras.dry_run", "--dry-run").show)
    elif config.asked.folds is not None:
        imports.optional("extras.folds", "--folds").train_each(config, config.asked.folds, main)
    else:
        main(config)


if __name__ == "__main__":
    sys.exit(exit_code(run, traceback="--traceback" in sys.argv))

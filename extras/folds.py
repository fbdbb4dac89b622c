"""`python train.py … --folds K`: train on every fold in turn, and say what the K runs reached together."""

import copy
import os
import statistics
from datetime import datetime

from parse_config import ConfigParser
from utils import nested, write_json
from utils.errors import ConfigError
from utils.metrics import RESERVED


def train_each(config, count, main):
    """Train K times, validating on another K-th of the examples each time; {name: (mean, standard deviation)}.

    main: trains what a ConfigParser says and returns its best epoch's numbers. The runs are TIME-fold0 … in the
    experiment's folder, beside TIME-folds.json with what is returned and each run's numbers.
    """
    if count < 2:
        raise ConfigError(f"--folds {count}: there have to be 2 or more.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--folds: the runs follow one another in one process; start it without torchrun.")
    if config.resume is not None:
        how = "go on with one of its runs by -r, then with the next by data_loader.args.fold."
        raise ConfigError(f"--folds trains anew; {how}")
    nested.set_value(config.config, "data_loader.args.folds", count)
    config.check()
    name, logs = config.run_id or datetime.now().strftime("%Y%m%d-%H%M%S"), []
    for fold in range(count):
        one = ConfigParser(copy.deepcopy(config.config), None, None, f"{name}-fold{fold}")
        one["data_loader"]["args"]["fold"] = fold
        one.source, one.origins, one.folders = config.source, config.origins, config.folders
        logs.append(main(one))
    if not all(logs):
        raise ConfigError("--folds: a run measured nothing; give it trainer.epochs, or more trainer.max_steps.")
    shared = [key for key, value in logs[0].items() if all(isinstance(log.get(key), float) for log in logs)]
    columns = {key: [log[key] for log in logs] for key in shared if key not in RESERVED[1:]}
    numbers = {key: (statistics.fmean(values), statistics.stdev(values)) for key, values in columns.items()}
    logger, path = config.get_logger("train"), config.runs_dir / f"{name}-folds.json"
    for key, (mean, deviation) in numbers.items():
        logger.info(f"{key:<24} {mean:.4f} ± {deviation:.4f} over {count} folds")
    write_json({"folds": logs, **{key: list(pair) for key, pair in numbers.items()}}, path)
    logger.info(f"written to {path}")
    return numbers

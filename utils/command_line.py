"""The flags that the scripts share."""

import argparse


def parser(doc, **resume):
    """An argument parser with -c, -r, -d, --trust, --traceback and KEY=VALUE. resume: more for -r's add_argument."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-c", "--config", help="the config, JSON or YAML; with -r, its sections replace the saved ones")
    made.add_argument("-r", "--resume", metavar="CHECKPOINT", **resume)
    made.add_argument("-d", "--device", help="indices of the GPUs to use, as in 0,1")
    made.add_argument("--trust", action="store_true", help="let a checkpoint's own config name any function")
    made.add_argument("--traceback", action="store_true", help="show where in the code a mistake was found")
    made.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="change a key, as in optimizer.args.lr=0.01")
    return made

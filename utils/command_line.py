"""The flags that the scripts share."""

import argparse


def parser(doc, **resume):
    """An argument parser with the flags of every script. resume: more for add_argument of -r."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-c", "--config", help="the config, JSON or YAML; with -r, its sections replace the saved ones")
    made.add_argument("-r", "--resume", metavar="CHECKPOINT", **resume)
    made.add_argument("-d", "--device", help="indices of the GPUs to use, as in 0,1")
    made.add_argument("--trust", action="store_true", help="let a checkpoint's own config name any function")
    made.add_argument("--traceback", action="store_true", help="show where in the code a mistake was found")
    made.add_argument("--check", action="store_true", help="only check the config, and show where each value is from")
    made.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="change a key, as in optimizer.args.lr=0.01")
    return made

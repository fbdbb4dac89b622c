"""A new project from this one.

python new_project.py FOLDER --from FORK    move a project forked from victoresque/pytorch-template onto this core
"""

import argparse
import sys

from utils import imports
from utils.errors import exit_code


def parser():
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", help="the new project; made, or empty")
    made.add_argument("--from", dest="fork", required=True, help="the fork's folder, which stays as it is")
    made.add_argument("--keep-base", action="store_true", help="keep the fork's own base/ on the other parts")
    return made


def run():
    asked = parser().parse_args()
    imports.optional("extras.migrate", "--from").move(asked.fork, asked.folder, asked.keep_base)


if __name__ == "__main__":
    sys.exit(exit_code(run))

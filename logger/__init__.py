"""Where numbers and lines go; nothing here loads torch or TensorBoard before it writes."""

from logger.history import append_numbers, cut_numbers, line_of
from logger.logger import close_log, get_logger, open_log
from logger.visualization import TensorboardWriter

__all__ = ["TensorboardWriter", "append_numbers", "close_log", "cut_numbers", "get_logger", "line_of", "open_log"]

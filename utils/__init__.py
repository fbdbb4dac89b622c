"""What projects import from here; nothing in it loads torch."""

from utils.util import MetricTracker, ensure_dir, inf_loop, prepare_device, read_json, write_json

__all__ = ["MetricTracker", "ensure_dir", "inf_loop", "prepare_device", "read_json", "write_json"]

from base.base_data_loader import BaseDataLoader
from base.base_model import BaseModel
from base.base_trainer import BaseTrainer

__all__ = ["BaseDataLoader", "BaseModel", "BaseTrainer"]

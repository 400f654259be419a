import torch as torch
from typing_extensions import TypeIs

__all__ = ["is_tensor", "torch"]

def is_tensor(value: object) -> TypeIs[torch.Tensor]: ...

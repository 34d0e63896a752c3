"""`longshore.jax`, under the name that it has in the package `safetensors`."""

from longshore._safetensors import safe_open
from longshore.jax import asarray, load, load_file, save, save_file, tensors

__all__ = ["asarray", "load", "load_file", "safe_open", "save", "save_file", "tensors"]

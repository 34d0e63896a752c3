"""Writing safetensors files: the bytes of a file, tensors by address, and those of torch."""

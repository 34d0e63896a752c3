/* Writes small model files with fixed content. */
#ifndef MODELS_H
#define MODELS_H

#include <stddef.h>

/* Writes two tensors: "weight", F32 of 64 x 1024, whose element i is i / 4; "bias", BF16 of 256. */
int write_safetensors(const char *path);

/* Writes a GGUF file of version 3 with metadata of each type and tensors F32, F16 and Q8_0. */
int write_gguf(const char *path);

/* Writes len bytes, each its offset times 131, truncated to 8 bits. */
int write_raw(const char *path, size_t len);

/* Writes len bytes. */
int write_bytes(const char *path, const void *bytes, size_t len);

#endif

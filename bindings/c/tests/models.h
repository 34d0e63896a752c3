/* Small model files, the same each time. */
#ifndef MODELS_H
#define MODELS_H

#include <stddef.h>

/* Two tensors: "weight", F32 of 64 x 1024, whose element i is i / 4; and "bias", BF16 of 256. */
int write_safetensors(const char *path);

/* A GGUF file of version 3 with metadata of each type and tensors F32, F16 and Q8_0. */
int write_gguf(const char *path);

/* len bytes, each its offset times 131, cut to 8 bits. */
int write_raw(const char *path, size_t len);

/* bytes as they are. */
int write_bytes(const char *path, const void *bytes, size_t len);

#endif

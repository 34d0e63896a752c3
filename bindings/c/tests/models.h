/* Writes small model files with fixed content. */
#ifndef MODELS_H
#define MODELS_H

#include <stddef.h>

/* Writes two tensors: "weight", F32 of 64 x 1024, whose element i is i / 4; "bias", BF16 of 256. */
int write_safetensors(const char *path);

/* Writes a GGUF file of version 3 with metadata of each type and tensors F32, F16 and Q8_0. */
int write_gguf(const char *path);

/* The shape of the large tensors of write_layers. Each has more than 1 MiB, so a stream reads it into
 * its memory, and it begins and ends within blocks of the disk. */
enum { LAYERS = 5, ROWS = 12, COLUMNS = 100001, LAYER_BYTES = ROWS * COLUMNS };

/* Writes a safetensors file with these tensors, in this order: for each layer N "layers.N.weight", U8
 * of ROWS x COLUMNS, and "layers.N.bias", U8 of 8, whose bytes are N; "scale", a scalar U8, 42. */
int write_layers(const char *path);

/* Returns 1 if these are rows of the weight of a layer, which write_layers has written. */
int are_rows(const void *data, int layer, int first_row, int rows);

/* Writes len bytes, each its offset times 131, truncated to 8 bits. */
int write_raw(const char *path, size_t len);

/* Writes len bytes. */
int write_bytes(const char *path, const void *bytes, size_t len);

#endif

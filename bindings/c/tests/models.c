#include "models.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void put(FILE *file, uint64_t value, int bytes) {
    for (int at = 0; at < bytes; at++) {
        fputc((int)(value >> (8 * at) & 0xff), file);
    }
}

static void put_float(FILE *file, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(file, bits, 4);
}

static void put_string(FILE *file, const char *text) {
    put(file, strlen(text), 8);
    fputs(text, file);
}

/* Closes the file; returns whether everything was written. */
static int closed(FILE *file) {
    int good = !ferror(file);
    return fclose(file) == 0 && good;
}

int write_safetensors(const char *path) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"bias\":{\"dtype\":\"BF16\",\"shape\":[256],\"data_offsets\":[262144,262656]},"
        "\"weight\":{\"dtype\":\"F32\",\"shape\":[64,1024],\"data_offsets\":[0,262144]}}";
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return 0;
    }
    put(file, sizeof header - 1, 8);
    fputs(header, file);
    for (int at = 0; at < 64 * 1024; at++) {
        put_float(file, (float)at / 4);
    }
    for (uint64_t at = 0; at < 256; at++) {
        put(file, 0x3f80 + at, 2);
    }
    return closed(file);
}

/* Bytes without a period, in which each row of each layer begins at another place. */
static unsigned char pattern[COLUMNS + 256];

static const unsigned char *row_of(int layer, int row) { return pattern + 31 * layer + 7 * row; }

int write_layers(const char *path) {
    char header[2048];
    int len = snprintf(header, sizeof header, "{");
    for (int layer = 0; layer < LAYERS; layer++) {
        int start = layer * (LAYER_BYTES + 8), end = start + LAYER_BYTES;
        len += snprintf(header + len, sizeof header - (size_t)len,
                        "\"layers.%d.weight\":{\"dtype\":\"U8\",\"shape\":[%d,%d],"
                        "\"data_offsets\":[%d,%d]},\"layers.%d.bias\":{\"dtype\":\"U8\","
                        "\"shape\":[8],\"data_offsets\":[%d,%d]},",
                        layer, ROWS, COLUMNS, start, end, layer, end, end + 8);
    }
    int scale = LAYERS * (LAYER_BYTES + 8);
    len += snprintf(header + len, sizeof header - (size_t)len,
                    "\"scale\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%d,%d]}}", scale,
                    scale + 1);
    uint32_t random = 1;
    for (size_t at = 0; at < sizeof pattern; at++) {
        random = random * 1664525 + 1013904223;
        pattern[at] = (unsigned char)(random >> 24);
    }
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return 0;
    }
    put(file, (uint64_t)len, 8);
    fputs(header, file);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int row = 0; row < ROWS; row++) {
            fwrite(row_of(layer, row), 1, COLUMNS, file);
        }
        for (int at = 0; at < 8; at++) {
            fputc(layer, file);
        }
    }
    fputc(42, file);
    return closed(file);
}

int are_rows(const void *data, int layer, int first_row, int rows) {
    const unsigned char *bytes = (const unsigned char *)data;
    for (int row = 0; row < rows; row++) {
        if (memcmp(bytes + (size_t)row * COLUMNS, row_of(layer, first_row + row), COLUMNS) != 0) {
            return 0;
        }
    }
    return 1;
}

/* The type numbers of metadata in GGUF, and of tensors in ggml. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
enum { GGML_F32 = 0, GGML_F16 = 1, GGML_Q8_0 = 8 };

static void put_key(FILE *file, const char *key, uint32_t type) {
    put_string(file, key);
    put(file, type, 4);
}

static void put_tensor(FILE *file, const char *name, uint64_t a, uint64_t b, int type, uint64_t at) {
    put_string(file, name);
    put(file, b > 0 ? 2 : 1, 4);
    put(file, a, 8);
    if (b > 0) {
        put(file, b, 8);
    }
    put(file, (uint64_t)type, 4);
    put(file, at, 8);
}

int write_gguf(const char *path) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return 0;
    }
    fputs("GGUF", file);
    put(file, 3, 4);
    put(file, 3, 8);  /* tensors */
    put(file, 14, 8); /* keys */
    put_key(file, "general.architecture", STRING);
    put_string(file, "llama");
    put_key(file, "general.alignment", U32);
    put(file, 64, 4);
    put_key(file, "test.u8", U8);
    put(file, 200, 1);
    put_key(file, "test.i8", I8);
    put(file, 0x80, 1);
    put_key(file, "test.u16", U16);
    put(file, 65535, 2);
    put_key(file, "test.i16", I16);
    put(file, 0x8000, 2);
    put_key(file, "test.i32", I32);
    put(file, 0xffffffff, 4);
    put_key(file, "test.f32", F32);
    put_float(file, 0.5f);
    put_key(file, "test.bool", BOOL);
    put(file, 1, 1);
    put_key(file, "test.u64", U64);
    put(file, UINT64_MAX, 8);
    put_key(file, "test.i64", I64);
    put(file, 1ull << 63, 8);
    put_key(file, "test.f64", F64);
    put(file, 0x3fd0000000000000, 8);
    put_key(file, "tokenizer.ggml.tokens", ARRAY);
    put(file, STRING, 4);
    put(file, 3, 8);
    put_string(file, "<s>");
    put_string(file, "");
    put_string(file, "\xe2\x96\x81the");
    put_key(file, "test.numbers", ARRAY);
    put(file, I16, 4);
    put(file, 2, 8);
    put(file, 7, 2);
    put(file, 0xfff9, 2);
    /* 1024 x 2 floats, 32 halves, 4 blocks of 34 bytes; each begins at a multiple of 64. */
    put_tensor(file, "token_embd.weight", 1024, 2, GGML_F32, 0);
    put_tensor(file, "output_norm.weight", 32, 0, GGML_F16, 8192);
    put_tensor(file, "blk.0.attn_q.weight", 32, 4, GGML_Q8_0, 8192 + 64);
    while (ftell(file) % 64 != 0) {
        fputc(0, file);
    }
    for (int at = 0; at < 2048; at++) {
        put_float(file, (float)at);
    }
    for (uint64_t at = 0; at < 32; at++) {
        put(file, 0x3c00 + at, 2);
    }
    for (uint64_t at = 0; at < 4 * 34; at++) {
        put(file, at * 37, 1);
    }
    /* The data of the last tensor is padded too. */
    while (ftell(file) % 64 != 0) {
        fputc(0, file);
    }
    return closed(file);
}

int write_raw(const char *path, size_t len) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return 0;
    }
    for (size_t at = 0; at < len; at++) {
        fputc((int)(at * 131 & 0xff), file);
    }
    return closed(file);
}

int write_bytes(const char *path, const void *bytes, size_t len) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return 0;
    }
    fwrite(bytes, 1, len, file);
    return closed(file);
}

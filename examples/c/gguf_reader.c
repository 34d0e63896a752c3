/* GGUF versions 2 and 3, little-endian: ggml-org/ggml, docs/gguf.md. */
#include "gguf_reader.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    STRING_BYTES_MAX = 1 << 20,
    TENSORS_MAX = 1 << 20,
    DIMENSIONS_MAX = 4,
    /* Of an array of metadata, so many elements are printed. */
    ELEMENTS_SHOWN = 8
};

/* Types of metadata. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };

/* Of a type of tensors: how many elements are a block, and its length in bytes. */
struct layout {
    uint32_t type;
    const char *name;
    uint32_t block_elements;
    uint32_t block_bytes;
};

static const struct layout layouts[] = {
    {0, "F32", 1, 4},        {1, "F16", 1, 2},        {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},     {6, "Q5_0", 32, 22},     {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},     {9, "Q8_1", 32, 36},     {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},  {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},  {15, "Q8_K", 256, 292},  {24, "I8", 1, 1},
    {25, "I16", 1, 2},       {26, "I32", 1, 4},       {27, "I64", 1, 8},
    {28, "F64", 1, 8},       {30, "BF16", 1, 2},
};

struct tensor {
    char *name;
    const struct layout *layout;
    uint32_t ndim;
    uint64_t dims[DIMENSIONS_MAX];
    uint64_t offset;
    uint64_t len;
};

struct reader {
    FILE *file;
    FILE *out;
    uint32_t alignment;
    const char *wrong;
};

/* Notes the first thing that is wrong. */
static void wrong(struct reader *reader, const char *what) {
    if (reader->wrong == NULL) {
        reader->wrong = what;
    }
}

/* A little-endian number of this many bytes; 0 after an error. */
static uint64_t number(struct reader *reader, size_t bytes) {
    unsigned char raw[8];
    uint64_t value = 0;
    if (reader->wrong != NULL || fread(raw, 1, bytes, reader->file) != bytes) {
        wrong(reader, "it ends too early");
        return 0;
    }
    while (bytes > 0) {
        value = value << 8 | raw[--bytes];
    }
    return value;
}

/* A string of the caller's; NULL once something is wrong. */
static char *string(struct reader *reader) {
    uint64_t len = number(reader, 8);
    if (len > STRING_BYTES_MAX) {
        wrong(reader, "a string is too long");
    }
    char *text = reader->wrong == NULL ? malloc(len + 1) : NULL;
    if (text == NULL) {
        wrong(reader, "there is no memory for a string");
        return NULL;
    }
    if (fread(text, 1, len, reader->file) != len) {
        wrong(reader, "it ends in a string");
        free(text);
        return NULL;
    }
    text[len] = '\0';
    return text;
}

static void print_string(const char *text, FILE *out) {
    fputc('"', out);
    for (; text != NULL && *text != '\0'; text++) {
        fputc((unsigned char)*text < ' ' ? '?' : *text, out);
    }
    fputc('"', out);
}

/* Reads a value that is no array, and prints it if it is to be seen. */
static void scalar(struct reader *reader, uint32_t type, int shown) {
    static const size_t bytes[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == STRING) {
        char *text = string(reader);
        if (shown) {
            print_string(text, reader->out);
        }
        free(text);
        return;
    }
    if (type >= TYPES || type == ARRAY) {
        wrong(reader, "a value is of no known type");
        return;
    }
    uint64_t raw = number(reader, bytes[type]);
    if (!shown || reader->wrong != NULL) {
        return;
    }
    uint32_t half = (uint32_t)raw;
    float single;
    double whole;
    switch (type) {
    case F32:
        memcpy(&single, &half, sizeof single);
        fprintf(reader->out, "%g", (double)single);
        break;
    case F64:
        memcpy(&whole, &raw, sizeof whole);
        fprintf(reader->out, "%g", whole);
        break;
    case BOOL:
        fputs(raw ? "true" : "false", reader->out);
        break;
    case I8:
        fprintf(reader->out, "%d", (int)raw - (raw > INT8_MAX ? 1 << 8 : 0));
        break;
    case I16:
        fprintf(reader->out, "%d", (int)raw - (raw > INT16_MAX ? 1 << 16 : 0));
        break;
    case I32:
        fprintf(reader->out, "%" PRId64, (int64_t)raw - (raw > INT32_MAX ? (int64_t)1 << 32 : 0));
        break;
    case I64:
        if (raw >> 63) {
            fprintf(reader->out, "-%" PRIu64, ~raw + 1);
            break;
        }
        /* A positive one is written as if it had no sign. */
        fprintf(reader->out, "%" PRIu64, raw);
        break;
    default:
        fprintf(reader->out, "%" PRIu64, raw);
    }
}

static void metadata(struct reader *reader) {
    char *key = string(reader);
    uint32_t type = (uint32_t)number(reader, 4);
    if (key != NULL && strcmp(key, "general.alignment") == 0 && type == U32) {
        reader->alignment = (uint32_t)number(reader, 4);
        fprintf(reader->out, "%s = %" PRIu32 "\n", key, reader->alignment);
        if (reader->alignment == 0 || reader->alignment % 8 != 0) {
            wrong(reader, "its alignment is no multiple of 8");
        }
        free(key);
        return;
    }
    print_string(key, reader->out);
    fputs(" = ", reader->out);
    if (type == ARRAY) {
        uint32_t of = (uint32_t)number(reader, 4);
        uint64_t count = number(reader, 8);
        fprintf(reader->out, "%" PRIu64 " x [", count);
        for (uint64_t at = 0; at < count && reader->wrong == NULL; at++) {
            int shown = at < ELEMENTS_SHOWN;
            fputs(shown && at > 0 ? ", " : "", reader->out);
            scalar(reader, of, shown);
        }
        fputs("]\n", reader->out);
    } else {
        scalar(reader, type, 1);
        fputc('\n', reader->out);
    }
    free(key);
}

/* What the header says of a tensor. */
static void describe(struct reader *reader, struct tensor *tensor) {
    tensor->name = string(reader);
    tensor->ndim = (uint32_t)number(reader, 4);
    if (tensor->ndim > DIMENSIONS_MAX) {
        wrong(reader, "a tensor has too many dimensions");
        return;
    }
    uint64_t elements = 1;
    for (uint32_t axis = 0; axis < tensor->ndim; axis++) {
        uint64_t dim = tensor->dims[axis] = number(reader, 8);
        if (dim != 0 && elements > (uint64_t)INT64_MAX / 8 / dim) {
            wrong(reader, "a tensor is too large");
            return;
        }
        elements *= dim;
    }
    uint32_t type = (uint32_t)number(reader, 4);
    for (size_t at = 0; at < sizeof layouts / sizeof *layouts; at++) {
        if (layouts[at].type == type) {
            tensor->layout = &layouts[at];
        }
    }
    tensor->offset = number(reader, 8);
    if (tensor->layout == NULL) {
        wrong(reader, "a tensor is of a type that this reader does not know");
    } else if (elements % tensor->layout->block_elements != 0) {
        wrong(reader, "a tensor has no whole number of blocks");
    } else {
        tensor->len = elements / tensor->layout->block_elements * tensor->layout->block_bytes;
    }
}

static void data(struct reader *reader, const struct tensor *tensor, uint64_t start) {
    static unsigned char chunk[1 << 16];
    uint64_t hash = 0xcbf29ce484222325u;
    if (tensor->offset > (uint64_t)INT64_MAX - start ||
        fseeko(reader->file, (off_t)(start + tensor->offset), SEEK_SET) != 0) {
        wrong(reader, "a tensor begins at no place of a file");
        return;
    }
    for (uint64_t left = tensor->len; left > 0;) {
        size_t want = left < sizeof chunk ? (size_t)left : sizeof chunk;
        if (fread(chunk, 1, want, reader->file) != want) {
            wrong(reader, "it ends in the data of a tensor");
            return;
        }
        for (size_t at = 0; at < want; at++) {
            hash = (hash ^ chunk[at]) * 0x100000001b3u;
        }
        left -= want;
    }
    print_string(tensor->name, reader->out);
    fprintf(reader->out, " %s [", tensor->layout->name);
    for (uint32_t axis = 0; axis < tensor->ndim; axis++) {
        fprintf(reader->out, "%s%" PRIu64, axis ? ", " : "", tensor->dims[axis]);
    }
    fprintf(reader->out, "] %" PRIu64 " bytes, fnv1a %016" PRIx64 "\n", tensor->len, hash);
}

static void model(struct reader *reader) {
    char magic[4];
    if (fread(magic, 1, sizeof magic, reader->file) != sizeof magic ||
        memcmp(magic, "GGUF", sizeof magic) != 0) {
        wrong(reader, "it does not begin with GGUF");
        return;
    }
    uint64_t version = number(reader, 4);
    uint64_t tensor_count = number(reader, 8);
    uint64_t key_count = number(reader, 8);
    if (version != 2 && version != 3) {
        wrong(reader, "its version is neither 2 nor 3");
    }
    if (tensor_count > TENSORS_MAX) {
        wrong(reader, "it has too many tensors");
    }
    for (uint64_t at = 0; at < key_count && reader->wrong == NULL; at++) {
        metadata(reader);
    }
    if (reader->wrong != NULL) {
        return;
    }
    struct tensor *tensors = calloc(tensor_count + 1, sizeof *tensors);
    if (tensors == NULL) {
        wrong(reader, "there is no memory for its tensors");
        return;
    }
    for (uint64_t at = 0; at < tensor_count && reader->wrong == NULL; at++) {
        describe(reader, &tensors[at]);
    }
    off_t end = ftello(reader->file);
    uint64_t padding = end < 0 ? 0 : (uint64_t)end % reader->alignment;
    uint64_t start = (uint64_t)end + (padding ? reader->alignment - padding : 0);
    for (uint64_t at = 0; at < tensor_count && reader->wrong == NULL; at++) {
        data(reader, &tensors[at], start);
    }
    for (uint64_t at = 0; at < tensor_count; at++) {
        free(tensors[at].name);
    }
    free(tensors);
}

int gguf_print(FILE *file, const char *name, FILE *out) {
    struct reader reader = {.file = file, .out = out, .alignment = 32};
    model(&reader);
    if (reader.wrong != NULL) {
        fprintf(stderr, "%s: %s\n", name, reader.wrong);
        return -1;
    }
    return 0;
}

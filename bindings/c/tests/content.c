/* Tests of the loaded content, its tensors, checksums and statistics. */
#include "api.h"

#include <errno.h>
#include <string.h>

#include "models.h"

static void version(void) {
    CHECK(strcmp(longshore_version(), LONGSHORE_VERSION) == 0);
    CHECK(longshore_version_number() == LONGSHORE_VERSION_NUMBER);
    char text[64];
    snprintf(text, sizeof text, "%d.%d.%d", LONGSHORE_VERSION_MAJOR, LONGSHORE_VERSION_MINOR,
             LONGSHORE_VERSION_PATCH);
    CHECK(strcmp(text, LONGSHORE_VERSION) == 0);
}

static void content_equals_the_file(void) {
    longshore_buffer *buffer = loaded(raw, NULL);
    CHECK(longshore_buffer_len(buffer) == RAW_BYTES);
    CHECK(longshore_buffer_fd_len(buffer) == RAW_BYTES);
    const unsigned char *data = (const unsigned char *)longshore_buffer_data(buffer);
    CHECK((uintptr_t)data % 4096 == 0);
    for (size_t at = 0; at < RAW_BYTES; at++) {
        CHECK(data[at] == (at * 131 & 0xff));
    }
    CHECK(strncmp(longshore_buffer_heap(buffer), "memfd", 5) == 0);
    CHECK(longshore_buffer_tensor_count(buffer) == 0);
    CHECK(longshore_buffer_tensor(buffer, 0) == NULL);
    uint64_t size = longshore_buffer_page_size(buffer);
    CHECK(size == 0 || size == 4096 || size == 65536 || size == 2 << 20);
    longshore_buffer_free(buffer);
}

static void tensors(void) {
    longshore_buffer *buffer = loaded(safetensors, NULL);
    CHECK(longshore_buffer_tensor_count(buffer) == 2);
    const longshore_tensor *weight = longshore_buffer_find_tensor(buffer, "weight");
    const longshore_tensor *bias = longshore_buffer_find_tensor(buffer, "bias");
    CHECK(weight == longshore_buffer_tensor(buffer, 0));
    CHECK(bias == longshore_buffer_tensor(buffer, 1));
    CHECK(longshore_buffer_tensor(buffer, 2) == NULL);
    CHECK(longshore_buffer_tensor(buffer, SIZE_MAX) == NULL);
    CHECK(longshore_buffer_find_tensor(buffer, "") == NULL);
    CHECK(longshore_buffer_find_tensor(buffer, "weigh") == NULL);
    CHECK(longshore_buffer_find_tensor(buffer, "weights") == NULL);

    CHECK(strcmp(longshore_tensor_name(weight), "weight") == 0);
    CHECK(longshore_tensor_name_len(weight) == 6);
    CHECK(strcmp(longshore_tensor_dtype(weight), "F32") == 0);
    CHECK(strcmp(longshore_tensor_dtype(bias), "BF16") == 0);
    CHECK(longshore_tensor_ndim(weight) == 2 && longshore_tensor_ndim(bias) == 1);
    CHECK(longshore_tensor_shape(weight)[0] == 64 && longshore_tensor_shape(weight)[1] == 1024);
    CHECK(longshore_tensor_shape(bias)[0] == 256);
    CHECK(longshore_tensor_len(weight) == 262144 && longshore_tensor_len(bias) == 512);
    CHECK(longshore_tensor_offset(bias) == longshore_tensor_offset(weight) + 262144);
    CHECK(longshore_tensor_offset(bias) + 512 == longshore_buffer_len(buffer));
    CHECK(longshore_tensor_file_index(bias) == 0);

    const char *data = (const char *)longshore_buffer_data(buffer);
    CHECK(longshore_tensor_data(weight) == data + longshore_tensor_offset(weight));
    const char *floats = (const char *)longshore_tensor_data(weight);
    for (size_t at = 0; at < 64 * 1024; at++) {
        float value;
        memcpy(&value, floats + 4 * at, 4);
        CHECK(value == (float)at / 4);
    }
    longshore_buffer_free(buffer);
}

static void gguf_tensors(void) {
    longshore_buffer *buffer = loaded(gguf, NULL);
    CHECK(longshore_buffer_tensor_count(buffer) == 3);
    const longshore_tensor *embedding = longshore_buffer_find_tensor(buffer, "token_embd.weight");
    const longshore_tensor *query = longshore_buffer_find_tensor(buffer, "blk.0.attn_q.weight");
    CHECK(embedding != NULL && query == longshore_buffer_tensor(buffer, 2));
    CHECK(strcmp(longshore_tensor_dtype(embedding), "F32") == 0);
    CHECK(strcmp(longshore_tensor_dtype(query), "Q8_0") == 0);
    CHECK(longshore_tensor_ndim(embedding) == 2);
    /* In the file it is 1024 x 2, innermost first. */
    CHECK(longshore_tensor_shape(embedding)[0] == 2 && longshore_tensor_shape(embedding)[1] == 1024);
    CHECK(longshore_tensor_len(query) == 136);
    CHECK(((const unsigned char *)longshore_tensor_data(query))[1] == 37);
    CHECK((uintptr_t)longshore_tensor_data(query) % 64 == 0);
    longshore_buffer_free(buffer);

    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.align_bytes = 4096;
    buffer = loaded(gguf, &options);
    query = longshore_buffer_find_tensor(buffer, "blk.0.attn_q.weight");
    CHECK((uintptr_t)longshore_tensor_data(query) % 4096 == 0);
    CHECK(((const unsigned char *)longshore_tensor_data(query))[1] == 37);
    longshore_buffer_free(buffer);
    /* The format decides, not the file's name. */
    options.format = "gguf";
    refused_file(raw, &options, LONGSHORE_BAD_FORMAT, EBADMSG, "not a valid GGUF file");
}

static void aligned_tensors(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.align_bytes = 4096;
    longshore_buffer *plain = loaded(safetensors, NULL), *buffer = loaded(safetensors, &options);
    CHECK(longshore_buffer_tensor_count(buffer) == 2);
    for (size_t at = 0; at < 2; at++) {
        const longshore_tensor *before = longshore_buffer_tensor(plain, at);
        const longshore_tensor *tensor =
            longshore_buffer_find_tensor(buffer, longshore_tensor_name(before));
        CHECK(tensor != NULL && (uintptr_t)longshore_tensor_data(tensor) % 4096 == 0);
        CHECK(longshore_tensor_offset(before) % 4096 != 0);
        CHECK(longshore_tensor_len(tensor) == longshore_tensor_len(before));
        CHECK(memcmp(longshore_tensor_data(tensor), longshore_tensor_data(before),
                     longshore_tensor_len(before)) == 0);
    }
    CHECK(longshore_file_len(longshore_buffer_file(buffer, 0)) == longshore_buffer_len(buffer));
    /* The content of the buffer is a valid file of the format. */
    char path[PATH_BYTES];
    in_folder(path, "aligned.safetensors");
    CHECK(write_bytes(path, longshore_buffer_data(buffer), longshore_buffer_len(buffer)));
    longshore_buffer_free(buffer);
    buffer = loaded(path, NULL);
    CHECK(longshore_tensor_offset(longshore_buffer_find_tensor(buffer, "bias")) % 4096 == 0);
    longshore_buffer_free(buffer);
    longshore_buffer_free(plain);
    refused_file(raw, &options, LONGSHORE_BAD_FORMAT, EBADMSG, "no tensors were found in");
    options.align_bytes = 96;
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "not a power of two");
}

static void names_may_contain_any_character(void) {
    static const char text[] =
        "{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[1,0],\"data_offsets\":[1,1]}}";
    char bytes[8 + sizeof text] = {(char)(sizeof text - 1)};
    memcpy(bytes + 8, text, sizeof text - 1);
    bytes[sizeof bytes - 1] = 42;
    in_folder(scratch, "names.safetensors");
    CHECK(write_bytes(scratch, bytes, sizeof bytes));
    longshore_buffer *buffer = loaded(scratch, NULL);
    const longshore_tensor *first = longshore_buffer_tensor(buffer, 0);
    CHECK(longshore_tensor_name_len(first) == 3);
    CHECK(memcmp(longshore_tensor_name(first), "a\0b", 4) == 0);
    CHECK(longshore_tensor_ndim(first) == 0 && longshore_tensor_shape(first) != NULL);
    CHECK(*(const char *)longshore_tensor_data(first) == 42);
    const longshore_tensor *empty = longshore_buffer_find_tensor(buffer, "a");
    CHECK(empty == longshore_buffer_tensor(buffer, 1) && longshore_tensor_len(empty) == 0);
    longshore_buffer_free(buffer);
}

static void a_directory_stands_for_its_model(void) {
    longshore_buffer *buffer = loaded(folder, NULL);
    CHECK(longshore_buffer_file_count(buffer) == 1);
    CHECK(strcmp(longshore_file_path(longshore_buffer_file(buffer, 0)), safetensors) == 0);
    CHECK(longshore_buffer_tensor_count(buffer) == 2);
    longshore_buffer_free(buffer);
}

static void several_files(void) {
    const char *paths[] = {raw, safetensors, raw};
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.verify = LONGSHORE_VERIFY_CRC32C | LONGSHORE_VERIFY_SHA256;
    longshore_buffer *buffer = NULL;
    CHECK(longshore_load(paths, LEN(paths), &options, &buffer, NULL) == LONGSHORE_OK);
    CHECK(longshore_buffer_file_count(buffer) == 3);
    CHECK(longshore_buffer_file(buffer, 3) == NULL);
    for (size_t at = 0; at < 3; at++) {
        const longshore_file *file = longshore_buffer_file(buffer, at);
        CHECK(strcmp(longshore_file_path(file), paths[at]) == 0);
        CHECK(longshore_file_offset(file) % 4096 == 0);
        CHECK(strlen(longshore_file_digest(file, LONGSHORE_VERIFY_CRC32C)) == 8);
        CHECK(strlen(longshore_file_digest(file, LONGSHORE_VERIFY_SHA256)) == 64);
        CHECK(longshore_file_digest(file, LONGSHORE_VERIFY_XXH3) == NULL);
        CHECK(longshore_file_digest(file, 3) == NULL);
    }
    const longshore_file *first = longshore_buffer_file(buffer, 0);
    const longshore_file *last = longshore_buffer_file(buffer, 2);
    CHECK(longshore_file_len(first) == RAW_BYTES);
    CHECK(strcmp(longshore_file_digest(first, LONGSHORE_VERIFY_SHA256),
                 longshore_file_digest(last, LONGSHORE_VERIFY_SHA256)) == 0);
    const char *data = (const char *)longshore_buffer_data(buffer);
    CHECK(memcmp(data, data + longshore_file_offset(last), RAW_BYTES) == 0);
    CHECK(longshore_tensor_file_index(longshore_buffer_find_tensor(buffer, "bias")) == 1);
    longshore_buffer_free(buffer);
}

static void manifest(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.verify = LONGSHORE_VERIFY_SHA256;
    longshore_buffer *buffer = loaded(raw, &options);
    char line[2 * PATH_BYTES], path[PATH_BYTES];
    const longshore_file *file = longshore_buffer_file(buffer, 0);
    snprintf(line, sizeof line, "%s  %s\n", longshore_file_digest(file, LONGSHORE_VERIFY_SHA256),
             raw);
    longshore_buffer_free(buffer);
    in_folder(path, "SHA256SUMS");
    options.verify = 0;
    options.manifest = path;
    CHECK(write_bytes(path, line, strlen(line)));
    buffer = loaded(raw, &options);
    /* The checksum of the manifest was computed. */
    file = longshore_buffer_file(buffer, 0);
    CHECK(strncmp(longshore_file_digest(file, LONGSHORE_VERIFY_SHA256), line, 64) == 0);
    longshore_buffer_free(buffer);
    line[0] = line[0] == '0' ? '1' : '0';
    CHECK(write_bytes(path, line, strlen(line)));
    refused_file(raw, &options, LONGSHORE_MISMATCH, EBADMSG, "sha256 is ");
    CHECK(write_bytes(path, "what", 4));
    refused_file(raw, &options, LONGSHORE_BAD_FORMAT, EBADMSG, "line 1");
}

static void stats(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.mode = "buffered";
    options.populate_ahead_bytes = 2 << 20;
    options.flags = LONGSHORE_LOAD_NO_URING;
    longshore_buffer *buffer = loaded(raw, &options);
    struct {
        longshore_stats known;
        uint64_t more;
    } newer;
    memset(&newer, 0xff, sizeof newer);
    newer.known.size = sizeof newer;
    CHECK(longshore_buffer_stats(buffer, &newer.known, NULL) == LONGSHORE_OK);
    CHECK(newer.known.size == sizeof newer && newer.more == 0);
    longshore_stats known;
    known.size = sizeof known;
    CHECK(longshore_buffer_stats(buffer, &known, NULL) == LONGSHORE_OK);
    CHECK(known.content_bytes == RAW_BYTES);
    CHECK(known.direct_bytes + known.staged_bytes + known.page_cache_bytes + known.uncached_bytes +
              known.buffered_bytes == RAW_BYTES);
    CHECK(known.direct_bytes == 0 && known.used_uring == 0);
    CHECK(known.hugetlb_2m_bytes + known.huge_2m_bytes + known.mid_64k_bytes + known.base_bytes >=
          RAW_BYTES);
    CHECK(known.elapsed_ns > 0 && known.elapsed_ns >= known.reading_ns);
    known.size = 8;
    longshore_error *error = NULL;
    CHECK(longshore_buffer_stats(buffer, &known, &error) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(strstr(longshore_error_message(error), "sizeof(longshore_stats)") != NULL);
    longshore_error_free(error);
    longshore_buffer_free(buffer);
}

/* Direct reads, by io_uring and by threads; some file systems do not support them. */
static void direct_reads(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.mode = "direct";
    for (uint32_t flags = 0; flags <= LONGSHORE_LOAD_NO_URING; flags += LONGSHORE_LOAD_NO_URING) {
        const char *path = raw;
        longshore_buffer *buffer = NULL;
        longshore_error *error = NULL;
        options.flags = flags;
        if (longshore_load(&path, 1, &options, &buffer, &error) != LONGSHORE_OK) {
            CHECK(longshore_error_code(error) == LONGSHORE_UNAVAILABLE);
            CHECK(longshore_error_errno(error) == EOPNOTSUPP);
            longshore_error_free(error);
            continue;
        }
        longshore_stats known;
        known.size = sizeof known;
        CHECK(longshore_buffer_stats(buffer, &known, NULL) == LONGSHORE_OK);
        CHECK(known.direct_bytes > 0 && (flags == 0 || known.used_uring == 0));
        const unsigned char *data = (const unsigned char *)longshore_buffer_data(buffer);
        for (size_t at = 0; at < RAW_BYTES; at++) {
            CHECK(data[at] == (at * 131 & 0xff));
        }
        longshore_buffer_free(buffer);
    }
}

const struct test content_tests[] = {
    TEST(version),
    TEST(content_equals_the_file),
    TEST(tensors),
    TEST(gguf_tensors),
    TEST(aligned_tensors),
    TEST(names_may_contain_any_character),
    TEST(a_directory_stands_for_its_model),
    TEST(several_files),
    TEST(manifest),
    TEST(stats),
    TEST(direct_reads),
    {NULL, NULL},
};

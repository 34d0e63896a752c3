/*
 * Each function of longshore.h, also given what it must refuse. In the C that is C++, too.
 *
 *   api                       runs the tests
 *   api --write-models DIR    writes model.safetensors and model.gguf into DIR
 */
#include <longshore.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "models.h"

#ifdef __cplusplus
#define STATIC_ASSERT(condition) static_assert(condition, #condition)
#else
#define STATIC_ASSERT(condition) _Static_assert(condition, #condition)
#endif

/* The layout that bindings/c/src holds its structs to. */
STATIC_ASSERT(sizeof(longshore_load_options) == 88);
STATIC_ASSERT(offsetof(longshore_load_options, heap) == 8);
STATIC_ASSERT(offsetof(longshore_load_options, mode) == 16);
STATIC_ASSERT(offsetof(longshore_load_options, format) == 24);
STATIC_ASSERT(offsetof(longshore_load_options, manifest) == 32);
STATIC_ASSERT(offsetof(longshore_load_options, align_bytes) == 40);
STATIC_ASSERT(offsetof(longshore_load_options, memory_max_bytes) == 48);
STATIC_ASSERT(offsetof(longshore_load_options, populate_ahead_bytes) == 56);
STATIC_ASSERT(offsetof(longshore_load_options, verify) == 64);
STATIC_ASSERT(offsetof(longshore_load_options, flags) == 68);
STATIC_ASSERT(offsetof(longshore_load_options, progress) == 72);
STATIC_ASSERT(offsetof(longshore_load_options, progress_data) == 80);
STATIC_ASSERT(sizeof(longshore_stats) == 136);
STATIC_ASSERT(offsetof(longshore_stats, content_bytes) == 8);
STATIC_ASSERT(offsetof(longshore_stats, reading_ns) == 40);
STATIC_ASSERT(offsetof(longshore_stats, page_cache_growth_bytes) == 88);
STATIC_ASSERT(offsetof(longshore_stats, used_uring) == 128);
STATIC_ASSERT(sizeof(longshore_code) == 4);

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);        \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define LEN(array) (sizeof(array) / sizeof *(array))

/* Room for a path of the test's folder, and a file of no whole number of pages. */
enum { PATH_BYTES = 512, RAW_BYTES = 3 * 1024 * 1024 + 17 };

static const char *program;
static char folder[] = "/tmp/longshore-c-XXXXXX";
static char safetensors[PATH_BYTES], gguf[PATH_BYTES], raw[PATH_BYTES], scratch[PATH_BYTES];

static void in_folder(char *path, const char *name) {
    CHECK((size_t)snprintf(path, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES);
}

/* Loads one file, which must succeed. */
static longshore_buffer *loaded(const char *path, const longshore_load_options *options) {
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    longshore_code code = longshore_load(&path, 1, options, &buffer, &error);
    if (code != LONGSHORE_OK) {
        fprintf(stderr, "%s\n", longshore_error_message(error));
    }
    CHECK(code == LONGSHORE_OK && buffer != NULL && error == NULL);
    return buffer;
}

/* How many entries a folder of /proc/self has. */
static int entries(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    CHECK(dir != NULL);
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

/* Checks that a load fails like this, says so, and leaves nothing. */
static void refused(const char *const *paths, size_t count, const longshore_load_options *options,
                    longshore_code expected, int expected_errno, const char *said) {
    int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    longshore_buffer *buffer = (longshore_buffer *)&fds;
    longshore_error *error = (longshore_error *)&fds;
    longshore_code code = longshore_load(paths, count, options, &buffer, &error);
    if (code != expected || error == NULL || strstr(longshore_error_message(error), said) == NULL) {
        fprintf(stderr, "code %d: %s\n", (int)code, error ? longshore_error_message(error) : "-");
    }
    CHECK(code == expected);
    CHECK(buffer == NULL);
    CHECK(error != NULL);
    CHECK(longshore_error_code(error) == expected);
    CHECK(longshore_error_errno(error) == expected_errno);
    CHECK(strstr(longshore_error_message(error), said) != NULL);
    CHECK(strchr(longshore_error_message(error), '\n') == NULL);
    longshore_error_free(error);
    /* Nobody need ask what went wrong. */
    CHECK(longshore_load(paths, count, options, &buffer, NULL) == expected);
    CHECK(buffer == NULL);
    CHECK(entries("/proc/self/fd") == fds);
    CHECK(entries("/proc/self/task") == threads);
}

static void refused_file(const char *path, const longshore_load_options *options,
                         longshore_code expected, int expected_errno, const char *said) {
    refused(&path, 1, options, expected, expected_errno, said);
}

static void version(void) {
    CHECK(strcmp(longshore_version(), LONGSHORE_VERSION) == 0);
    CHECK(longshore_version_number() == LONGSHORE_VERSION_NUMBER);
    char text[64];
    snprintf(text, sizeof text, "%d.%d.%d", LONGSHORE_VERSION_MAJOR, LONGSHORE_VERSION_MINOR,
             LONGSHORE_VERSION_PATCH);
    CHECK(strcmp(text, LONGSHORE_VERSION) == 0);
}

static void content_is_the_files(void) {
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
    /* Whatever its name. */
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
    /* What is in the buffer is a file of the format again. */
    char path[PATH_BYTES];
    in_folder(path, "aligned.safetensors");
    CHECK(write_bytes(path, longshore_buffer_data(buffer), longshore_buffer_len(buffer)));
    longshore_buffer_free(buffer);
    buffer = loaded(path, NULL);
    CHECK(longshore_tensor_offset(longshore_buffer_find_tensor(buffer, "bias")) % 4096 == 0);
    longshore_buffer_free(buffer);
    longshore_buffer_free(plain);
    refused_file(raw, &options, LONGSHORE_BAD_FORMAT, EBADMSG, "no tensors are known in");
    options.align_bytes = 96;
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "no power of two");
}

static void names_may_hold_anything(void) {
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
    /* What the manifest asked for was computed. */
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

/* Past the page cache, by io_uring and by threads, or refused where the file system cannot. */
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

static void sealed_content_cannot_be_written(void) {
    longshore_buffer *buffer = loaded(raw, NULL);
    CHECK(longshore_buffer_is_sealed(buffer) == 1);
    CHECK(longshore_buffer_data_mut(buffer) == NULL);
    int fd = longshore_buffer_fd_borrow(buffer);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(write(fd, "x", 1) == -1);
    CHECK(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    int again = open(longshore_buffer_path(buffer), O_RDWR);
    if (again >= 0) {
        /* The superuser may open it so. */
        CHECK(pwrite(again, "x", 1, 0) == -1 && errno == EPERM);
        CHECK(ftruncate(again, 0) == -1 && errno == EPERM);
        close(again);
    }
    longshore_buffer_free(buffer);
}

static void writable_content_is_shared(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.heap = "memfd";
    options.flags = LONGSHORE_LOAD_WRITABLE;
    longshore_buffer *buffer = loaded(raw, &options);
    CHECK(longshore_buffer_is_sealed(buffer) == 0);
    CHECK(longshore_buffer_sync(buffer, LONGSHORE_SYNC_WRITE, NULL) == LONGSHORE_OK);
    char *data = (char *)longshore_buffer_data_mut(buffer);
    CHECK(data != NULL && data == longshore_buffer_data(buffer));
    data[4097] = 'L';
    CHECK(longshore_buffer_sync(buffer, LONGSHORE_SYNC_WRITE | LONGSHORE_SYNC_END, NULL) ==
          LONGSHORE_OK);
    char seen = 0;
    CHECK(pread(longshore_buffer_fd_borrow(buffer), &seen, 1, 4097) == 1 && seen == 'L');
    CHECK(ftruncate(longshore_buffer_fd_borrow(buffer), 0) == -1);
    longshore_error *error = NULL;
    for (uint32_t flags = 0; flags < 16; flags += 4) {
        CHECK(longshore_buffer_sync(buffer, flags, &error) == LONGSHORE_INVALID_ARGUMENT);
        longshore_error_free(error);
    }
    longshore_buffer_free(buffer);
}

/* Here, or where a dma-buf is to be had. */
static void dma_buf(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.heap = "udmabuf";
    refused_file(raw, &options, LONGSHORE_UNAVAILABLE, EOPNOTSUPP, "cannot seal its content");
    options.flags = LONGSHORE_LOAD_WRITABLE;
    const char *path = raw;
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    int fd = 0;
    if (longshore_load(&path, 1, &options, &buffer, &error) == LONGSHORE_OK) {
        CHECK(longshore_buffer_dma_buf_fd_borrow(buffer) >= 0);
        CHECK(longshore_buffer_dma_buf_fd_dup(buffer, &fd, NULL) == LONGSHORE_OK);
        CHECK(close(fd) == 0);
        CHECK(longshore_buffer_sync(buffer, LONGSHORE_SYNC_READ, NULL) == LONGSHORE_OK);
        CHECK(*(const char *)longshore_buffer_data(buffer) == 0);
        CHECK(longshore_buffer_fd_len(buffer) % 4096 == 0);
        CHECK(longshore_buffer_len(buffer) == RAW_BYTES);
        longshore_buffer_free(buffer);
    } else {
        CHECK(longshore_error_code(error) == LONGSHORE_UNAVAILABLE);
        CHECK(strstr(longshore_error_message(error), "udmabuf") != NULL);
        longshore_error_free(error);
    }
    buffer = loaded(raw, NULL);
    CHECK(longshore_buffer_dma_buf_fd_borrow(buffer) == -1);
    CHECK(longshore_buffer_dma_buf_fd_dup(buffer, &fd, &error) == LONGSHORE_NOT_FOUND);
    CHECK(fd == -1);
    longshore_error_free(error);
    longshore_buffer_free(buffer);
}

static void descriptors_outlive_the_buffer(void) {
    longshore_buffer *buffer = loaded(raw, NULL);
    int fd = -2;
    CHECK(longshore_buffer_fd_dup(buffer, &fd, NULL) == LONGSHORE_OK && fd >= 0);
    CHECK(fd != longshore_buffer_fd_borrow(buffer) && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    longshore_buffer_free(buffer);
    const char *data = (const char *)mmap(NULL, RAW_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(data != MAP_FAILED);
    CHECK((data[RAW_BYTES - 1] & 0xff) == ((RAW_BYTES - 1) * 131 & 0xff));
    CHECK(munmap((void *)data, RAW_BYTES) == 0 && close(fd) == 0);
}

static void each_reader_has_a_position(void) {
    longshore_buffer *buffer = loaded(raw, NULL);
    FILE *one = fopen(longshore_buffer_path(buffer), "rb");
    FILE *two = fopen(longshore_buffer_path(buffer), "rb");
    int three = -1;
    CHECK(one != NULL && two != NULL);
    CHECK(longshore_buffer_fd_open(buffer, &three, NULL) == LONGSHORE_OK);
    CHECK(fseek(one, 0, SEEK_END) == 0 && ftell(one) == RAW_BYTES);
    CHECK(fseek(one, 1000, SEEK_SET) == 0 && fgetc(one) == (1000 * 131 & 0xff));
    CHECK(fgetc(two) == 0 && fgetc(two) == 131 && fgetc(one) == (1001 * 131 & 0xff));
    unsigned char byte = 9;
    CHECK(read(three, &byte, 1) == 1 && byte == 0);
    CHECK(lseek(longshore_buffer_fd_borrow(buffer), 0, SEEK_CUR) == 0);
    CHECK(write(three, "x", 1) == -1);
    fclose(one);
    fclose(two);
    close(three);
    longshore_buffer_free(buffer);
}

static void no_descriptor_is_left_to_give(void) {
    longshore_buffer *buffer = loaded(raw, NULL);
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    int fd = 0, other = 0;
    longshore_error *first = NULL, *second = NULL;
    longshore_code dup = longshore_buffer_fd_dup(buffer, &fd, &first);
    longshore_code open = longshore_buffer_fd_open(buffer, &other, &second);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(dup == LONGSHORE_SYSTEM && open == LONGSHORE_SYSTEM && fd == -1 && other == -1);
    /* F_DUPFD says EINVAL where no number is free. */
    CHECK(longshore_error_errno(first) == EMFILE || longshore_error_errno(first) == EINVAL);
    CHECK(longshore_error_errno(second) == EMFILE);
    longshore_error_free(first);
    longshore_error_free(second);
    longshore_buffer_free(buffer);
}

/* What the program does that another one starts: maps what it inherited. */
static int second_process(int fd, size_t len) {
    const unsigned char *data =
        (const unsigned char *)mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(data != MAP_FAILED);
    for (size_t at = 0; at < len; at++) {
        CHECK(data[at] == (at * 131 & 0xff));
    }
    return 7;
}

static void another_process_sees_the_content(void) {
    longshore_buffer *buffer = loaded(raw, NULL);
    char fd[16], len[24];
    snprintf(fd, sizeof fd, "%d", longshore_buffer_fd_borrow(buffer));
    snprintf(len, sizeof len, "%d", (int)RAW_BYTES);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fcntl(longshore_buffer_fd_borrow(buffer), F_SETFD, 0);
        execl(program, program, "--second", fd, len, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    longshore_buffer_free(buffer);
}

static void what_cannot_be_opened(void) {
    in_folder(scratch, "missing");
    refused_file(scratch, NULL, LONGSHORE_CANNOT_OPEN, ENOENT, "cannot open /tmp/longshore-c-");
    refused_file(folder, NULL, LONGSHORE_NOT_REGULAR, EINVAL, "is a directory");
    in_folder(scratch, "fifo");
    CHECK(mkfifo(scratch, 0600) == 0);
    refused_file(scratch, NULL, LONGSHORE_NOT_REGULAR, EINVAL, "is a FIFO");
    refused_file("/dev/null", NULL, LONGSHORE_NOT_REGULAR, EINVAL, "is a device");
    refused_file("", NULL, LONGSHORE_CANNOT_OPEN, ENOENT, "cannot open");
    /* The second of two: what was done for the first is undone. */
    in_folder(scratch, "missing");
    const char *paths[] = {raw, scratch};
    refused(paths, 2, NULL, LONGSHORE_CANNOT_OPEN, ENOENT, "missing");
}

static void hostile_files(void) {
    struct {
        const char *bytes;
        size_t len;
        const char *said;
    } cases[] = {
        {"", 0, "the length of its header alone takes 8"},
        {"\377\377\377\377\377\377\377\177{}", 10, "more than the 100000000 there may be"},
        {"\003\0\0\0\0\0\0\0{}", 10, "cut short"},
        {"\002\0\0\0\0\0\0\0{]", 10, "not a valid safetensors file"},
        {"\101\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],"
         "\"data_offsets\":[0,1]}}x", 75, "not a valid safetensors file"},
        {"GGUF\003\0\0\0", 8, "GGUF"},
    };
    in_folder(scratch, "hostile.safetensors");
    for (size_t at = 0; at < LEN(cases); at++) {
        CHECK(write_bytes(scratch, cases[at].bytes, cases[at].len));
        refused_file(scratch, NULL, LONGSHORE_BAD_FORMAT, EBADMSG, cases[at].said);
    }
    struct {
        const char *bytes;
        size_t len;
    } gguf_cases[] = {
        {"", 0},
        {"GGUF", 4},
        {"GGUF\003\0\0\0\377\377\377\377\377\377\377\177\0\0\0\0\0\0\0\0", 24},
        {"GGUF\003\0\0\0\0\0\0\0\0\0\0\0\377\377\377\377\377\377\377\377", 24},
        {"GGUF\003\0\0\0\0\0\0\0\0\0\0\0\001\0\0\0\0\0\0\0\377\377\377\377\377\377\377\377k", 33},
        {"{}", 2},
    };
    in_folder(scratch, "hostile.gguf");
    for (size_t at = 0; at < LEN(gguf_cases); at++) {
        CHECK(write_bytes(scratch, gguf_cases[at].bytes, gguf_cases[at].len));
        refused_file(scratch, NULL, LONGSHORE_BAD_FORMAT, EBADMSG, "not a valid GGUF file");
    }
    in_folder(scratch, "hostile.safetensors");
    /* As bytes of which nothing is known it is fine. */
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.format = "raw";
    longshore_buffer *buffer = loaded(scratch, &options);
    CHECK(longshore_buffer_len(buffer) == 8);
    longshore_buffer_free(buffer);
}

static void an_empty_file_is_an_empty_buffer(void) {
    in_folder(scratch, "empty");
    CHECK(write_bytes(scratch, "", 0));
    longshore_buffer *buffer = loaded(scratch, NULL);
    CHECK(longshore_buffer_len(buffer) == 0 && longshore_buffer_data(buffer) != NULL);
    CHECK(longshore_buffer_page_size(buffer) == 0);
    longshore_buffer_free(buffer);
}

static void what_does_not_fit(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.memory_max_bytes = RAW_BYTES - 1;
    refused_file(raw, &options, LONGSHORE_NO_MEMORY, ENOMEM, "the limit given for this load");
    options.memory_max_bytes = RAW_BYTES;
    longshore_buffer_free(loaded(raw, &options));
    /* More than the machine has, and none of it on the disk. */
    in_folder(scratch, "vast");
    int fd = open(scratch, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(ftruncate(fd, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) + 1) == 0);
    refused_file(scratch, NULL, LONGSHORE_NO_MEMORY, ENOMEM, " bytes are needed, but ");
    CHECK(close(fd) == 0 && unlink(scratch) == 0);
}

struct heard {
    int calls, cancel_at;
    uint64_t done, total;
    pthread_t thread;
};

static int hear(uint64_t done_bytes, uint64_t total_bytes, void *data) {
    struct heard *heard = (struct heard *)data;
    CHECK(done_bytes >= heard->done && done_bytes <= total_bytes);
    heard->done = done_bytes;
    heard->total = total_bytes;
    heard->thread = pthread_self();
    return ++heard->calls == heard->cancel_at;
}

static void progress_and_cancelling(void) {
    struct heard heard;
    memset(&heard, 0, sizeof heard);
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.progress = hear;
    options.progress_data = &heard;
    longshore_buffer_free(loaded(raw, &options));
    CHECK(heard.calls >= 1 && heard.done == RAW_BYTES && heard.total == RAW_BYTES);
    CHECK(pthread_equal(heard.thread, pthread_self()));
    /* At whatever call: also at the last one, when all was read. */
    int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    memset(&heard, 0, sizeof heard);
    heard.cancel_at = 1;
    const char *path = raw;
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    CHECK(longshore_load(&path, 1, &options, &buffer, &error) == LONGSHORE_CANCELLED);
    CHECK(buffer == NULL && heard.calls == 1);
    CHECK(longshore_error_errno(error) == ECANCELED);
    CHECK(strncmp(longshore_error_message(error), "cancelled after ", 16) == 0);
    longshore_error_free(error);
    CHECK(entries("/proc/self/fd") == fds && entries("/proc/self/task") == threads);
}

static void options_that_mean_nothing(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.size = 0;
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "sizeof");
    options.size = sizeof options;
    options.heap = "shm";
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "'shm' is no heap");
    options.heap = NULL;
    options.mode = "mmap";
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "'mmap' is no read mode");
    options.mode = NULL;
    options.format = "pickle";
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "'pickle' is no format");
    options.format = NULL;
    options.verify = 8;
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "no checksum");
    options.verify = 0;
    options.flags = 0x100;
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "no flag");
    options.flags = LONGSHORE_LOAD_WRITABLE;
    options.heap = "dma-heap:no-such-heap";
    refused_file(raw, &options, LONGSHORE_UNAVAILABLE, ENOENT, "no-such-heap");
    /* A program that knows more fields than the library. */
    struct {
        longshore_load_options known;
        uint64_t more;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    longshore_buffer_free(loaded(raw, &newer.known));
    newer.more = 1;
    refused_file(raw, &newer.known, LONGSHORE_INVALID_ARGUMENT, EINVAL, "does not know");
}

static void null_is_an_error(void) {
    const char *none = NULL, *path = raw;
    refused(NULL, 1, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "paths is NULL");
    refused(&path, 0, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "nothing to load");
    refused(&none, 1, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "paths[0] is NULL");
    refused(&path, SIZE_MAX, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "more than there can be");
    longshore_error *error = NULL;
    CHECK(longshore_load(&path, 1, NULL, NULL, &error) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(strcmp(longshore_error_message(error), "buffer is NULL") == 0);
    longshore_error_free(error);
    CHECK(longshore_load(NULL, 0, NULL, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);

    int fd = 3;
    longshore_stats known;
    known.size = sizeof known;
    longshore_buffer *buffer = loaded(raw, NULL);
    CHECK(longshore_buffer_fd_dup(NULL, &fd, NULL) == LONGSHORE_INVALID_ARGUMENT && fd == -1);
    CHECK(longshore_buffer_fd_dup(buffer, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_buffer_fd_open(NULL, &fd, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_buffer_fd_open(buffer, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_buffer_dma_buf_fd_dup(NULL, &fd, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_buffer_stats(NULL, &known, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_buffer_stats(buffer, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_buffer_sync(NULL, LONGSHORE_SYNC_READ, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_buffer_find_tensor(buffer, NULL) == NULL);
    longshore_buffer_free(buffer);

    CHECK(longshore_buffer_data(NULL) == NULL && longshore_buffer_data_mut(NULL) == NULL);
    CHECK(longshore_buffer_len(NULL) == 0 && longshore_buffer_fd_len(NULL) == 0);
    CHECK(longshore_buffer_is_sealed(NULL) == 0 && longshore_buffer_heap(NULL) == NULL);
    CHECK(longshore_buffer_page_size(NULL) == 0 && longshore_buffer_path(NULL) == NULL);
    CHECK(longshore_buffer_fd_borrow(NULL) == -1);
    CHECK(longshore_buffer_dma_buf_fd_borrow(NULL) == -1);
    CHECK(longshore_buffer_file_count(NULL) == 0 && longshore_buffer_file(NULL, 0) == NULL);
    CHECK(longshore_file_path(NULL) == NULL && longshore_file_offset(NULL) == 0);
    CHECK(longshore_file_len(NULL) == 0);
    CHECK(longshore_file_digest(NULL, LONGSHORE_VERIFY_XXH3) == NULL);
    CHECK(longshore_buffer_tensor_count(NULL) == 0 && longshore_buffer_tensor(NULL, 0) == NULL);
    CHECK(longshore_buffer_find_tensor(NULL, "a") == NULL);
    CHECK(longshore_tensor_name(NULL) == NULL && longshore_tensor_name_len(NULL) == 0);
    CHECK(longshore_tensor_dtype(NULL) == NULL && longshore_tensor_ndim(NULL) == 0);
    CHECK(longshore_tensor_shape(NULL) == NULL && longshore_tensor_offset(NULL) == 0);
    CHECK(longshore_tensor_len(NULL) == 0 && longshore_tensor_data(NULL) == NULL);
    CHECK(longshore_tensor_file_index(NULL) == 0);
    CHECK(longshore_error_code(NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_error_errno(NULL) == EINVAL && longshore_error_message(NULL) == NULL);
    longshore_error_free(NULL);
    longshore_buffer_free(NULL);
}

static void *use(void *shared) {
    const longshore_buffer *buffer = (const longshore_buffer *)shared;
    for (int round = 0; round < 20; round++) {
        const longshore_tensor *bias = longshore_buffer_find_tensor(buffer, "bias");
        CHECK(((const unsigned char *)longshore_tensor_data(bias))[3] == 0x3f);
        int fd = -1;
        CHECK(longshore_buffer_fd_open(buffer, &fd, NULL) == LONGSHORE_OK);
        CHECK(close(fd) == 0);
        longshore_buffer *own = loaded(safetensors, NULL);
        CHECK(longshore_buffer_len(own) == longshore_buffer_len(buffer));
        longshore_buffer_free(own);
        const char *missing = "/nonexistent";
        longshore_error *error = NULL;
        CHECK(longshore_load(&missing, 1, NULL, &own, &error) == LONGSHORE_CANNOT_OPEN);
        CHECK(longshore_error_errno(error) == ENOENT);
        longshore_error_free(error);
    }
    return NULL;
}

static void threads(void) {
    longshore_buffer *buffer = loaded(safetensors, NULL);
    pthread_t all[8];
    for (size_t at = 0; at < LEN(all); at++) {
        CHECK(pthread_create(&all[at], NULL, use, buffer) == 0);
    }
    for (size_t at = 0; at < LEN(all); at++) {
        CHECK(pthread_join(all[at], NULL) == 0);
    }
    longshore_buffer_free(buffer);
}

static const struct {
    const char *name;
    void (*run)(void);
} all[] = {
#define TEST(function) {#function, function}
    TEST(version),
    TEST(content_is_the_files),
    TEST(tensors),
    TEST(gguf_tensors),
    TEST(aligned_tensors),
    TEST(names_may_hold_anything),
    TEST(several_files),
    TEST(manifest),
    TEST(stats),
    TEST(direct_reads),
    TEST(sealed_content_cannot_be_written),
    TEST(writable_content_is_shared),
    TEST(dma_buf),
    TEST(descriptors_outlive_the_buffer),
    TEST(each_reader_has_a_position),
    TEST(no_descriptor_is_left_to_give),
    TEST(another_process_sees_the_content),
    TEST(what_cannot_be_opened),
    TEST(hostile_files),
    TEST(an_empty_file_is_an_empty_buffer),
    TEST(what_does_not_fit),
    TEST(progress_and_cancelling),
    TEST(options_that_mean_nothing),
    TEST(null_is_an_error),
    TEST(threads),
};

static void remove_folder(void) {
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(folder);
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc == 4 && strcmp(argv[1], "--second") == 0) {
        return second_process(atoi(argv[2]), (size_t)atoll(argv[3]));
    }
    if (argc == 3 && strcmp(argv[1], "--write-models") == 0) {
        snprintf(safetensors, PATH_BYTES, "%s/model.safetensors", argv[2]);
        snprintf(gguf, PATH_BYTES, "%s/model.gguf", argv[2]);
        return write_safetensors(safetensors) && write_gguf(gguf) ? 0 : 1;
    }
    CHECK(argc == 1 && mkdtemp(folder) != NULL);
    /* A failed check ends the program there. */
    atexit(remove_folder);
    in_folder(safetensors, "model.safetensors");
    in_folder(gguf, "model.gguf");
    in_folder(raw, "raw");
    CHECK(write_safetensors(safetensors) && write_gguf(gguf) && write_raw(raw, RAW_BYTES));
    for (size_t at = 0; at < LEN(all); at++) {
        int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
        all[at].run();
        CHECK(entries("/proc/self/fd") == fds && entries("/proc/self/task") == threads);
        printf("test %s ... ok\n", all[at].name);
        fflush(stdout);
    }
    printf("test result: ok. %d passed; 0 failed; 0 ignored\n", (int)LEN(all));
    return 0;
}

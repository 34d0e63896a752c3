/*
 * Tests of each function of longshore.h, with valid and with invalid arguments. The code is valid C
 * and C++.
 *
 *   api                       runs the tests
 *   api --serve DIR SOCKET    runs the tests of a server that serves DIR and listens at SOCKET
 *   api --write-models DIR    writes model.safetensors and model.gguf into DIR
 */
#include "api.h"

#include <dirent.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models.h"

#ifdef __cplusplus
#define STATIC_ASSERT(condition) static_assert(condition, #condition)
#else
#define STATIC_ASSERT(condition) _Static_assert(condition, #condition)
#endif

/* The layout of structs that bindings/c/src asserts, too. */
STATIC_ASSERT(sizeof(longshore_load_options) == 120);
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
STATIC_ASSERT(offsetof(longshore_load_options, storage_options) == 88);
STATIC_ASSERT(offsetof(longshore_load_options, storage_option_count) == 96);
STATIC_ASSERT(offsetof(longshore_load_options, timeout_ms) == 104);
STATIC_ASSERT(offsetof(longshore_load_options, connections) == 112);
STATIC_ASSERT(sizeof(longshore_storage_option) == 16);
STATIC_ASSERT(offsetof(longshore_storage_option, value) == 8);
STATIC_ASSERT(sizeof(longshore_stats) == 144);
STATIC_ASSERT(offsetof(longshore_stats, content_bytes) == 8);
STATIC_ASSERT(offsetof(longshore_stats, reading_ns) == 40);
STATIC_ASSERT(offsetof(longshore_stats, page_cache_growth_bytes) == 88);
STATIC_ASSERT(offsetof(longshore_stats, used_uring) == 128);
STATIC_ASSERT(offsetof(longshore_stats, remote_bytes) == 136);
STATIC_ASSERT(sizeof(longshore_held) == 64);
STATIC_ASSERT(offsetof(longshore_held, path) == 16);
STATIC_ASSERT(offsetof(longshore_held, age_ms) == 48);
STATIC_ASSERT(offsetof(longshore_held, flags) == 60);
STATIC_ASSERT(sizeof(longshore_rows) == 48);
STATIC_ASSERT(offsetof(longshore_rows, name) == 8);
STATIC_ASSERT(offsetof(longshore_rows, start) == 16);
STATIC_ASSERT(offsetof(longshore_rows, end) == 24);
STATIC_ASSERT(offsetof(longshore_rows, share_index) == 32);
STATIC_ASSERT(offsetof(longshore_rows, share_count) == 40);
STATIC_ASSERT(sizeof(longshore_stream_options) == 168);
STATIC_ASSERT(offsetof(longshore_stream_options, mode) == 8);
STATIC_ASSERT(offsetof(longshore_stream_options, format) == 16);
STATIC_ASSERT(offsetof(longshore_stream_options, manifest) == 24);
STATIC_ASSERT(offsetof(longshore_stream_options, names) == 32);
STATIC_ASSERT(offsetof(longshore_stream_options, name_count) == 40);
STATIC_ASSERT(offsetof(longshore_stream_options, patterns) == 48);
STATIC_ASSERT(offsetof(longshore_stream_options, pattern_count) == 56);
STATIC_ASSERT(offsetof(longshore_stream_options, files) == 64);
STATIC_ASSERT(offsetof(longshore_stream_options, file_count) == 72);
STATIC_ASSERT(offsetof(longshore_stream_options, rows) == 80);
STATIC_ASSERT(offsetof(longshore_stream_options, rows_count) == 88);
STATIC_ASSERT(offsetof(longshore_stream_options, memory_bytes) == 96);
STATIC_ASSERT(offsetof(longshore_stream_options, wait_ms) == 104);
STATIC_ASSERT(offsetof(longshore_stream_options, verify) == 112);
STATIC_ASSERT(offsetof(longshore_stream_options, flags) == 116);
STATIC_ASSERT(offsetof(longshore_stream_options, waiting) == 120);
STATIC_ASSERT(offsetof(longshore_stream_options, waiting_data) == 128);
STATIC_ASSERT(offsetof(longshore_stream_options, storage_options) == 136);
STATIC_ASSERT(offsetof(longshore_stream_options, storage_option_count) == 144);
STATIC_ASSERT(offsetof(longshore_stream_options, timeout_ms) == 152);
STATIC_ASSERT(offsetof(longshore_stream_options, connections) == 160);
STATIC_ASSERT(sizeof(longshore_stream_report) == 112);
STATIC_ASSERT(offsetof(longshore_stream_report, selected_tensors) == 8);
STATIC_ASSERT(offsetof(longshore_stream_report, yielded_tensors) == 24);
STATIC_ASSERT(offsetof(longshore_stream_report, grown_bytes) == 48);
STATIC_ASSERT(offsetof(longshore_stream_report, elapsed_ns) == 56);
STATIC_ASSERT(offsetof(longshore_stream_report, direct_bytes) == 64);
STATIC_ASSERT(offsetof(longshore_stream_report, used_uring) == 96);
STATIC_ASSERT(offsetof(longshore_stream_report, remote_bytes) == 104);
STATIC_ASSERT(sizeof(longshore_code) == 4);

const char *program;
char folder[PATH_BYTES] = "/tmp/longshore-c-XXXXXX";
char safetensors[PATH_BYTES], gguf[PATH_BYTES], raw[PATH_BYTES], layers[PATH_BYTES];
char scratch[PATH_BYTES];

void in_folder(char *path, const char *name) {
    CHECK((size_t)snprintf(path, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES);
}

longshore_buffer *loaded(const char *path, const longshore_load_options *options) {
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    longshore_code code = longshore_load(&path, 1, options, &buffer, &error);
    if (code != LONGSHORE_OK) {
        fprintf(stderr, "%s\n", longshore_error_message(error));
    }
    CHECK(code == LONGSHORE_OK && buffer != NULL && error == NULL);
    return buffer;
}

int entries(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    CHECK(dir != NULL);
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

void comes_down_to(int count, const char *path) {
    for (int tries = 0; entries(path) > count; tries++) {
        CHECK(tries < 5000);
        usleep(1000);
    }
}

void refused(const char *const *paths, size_t count, const longshore_load_options *options,
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
    /* The error argument is optional. */
    CHECK(longshore_load(paths, count, options, &buffer, NULL) == expected);
    CHECK(buffer == NULL);
    comes_down_to(fds, "/proc/self/fd");
    comes_down_to(threads, "/proc/self/task");
}

void refused_file(const char *path, const longshore_load_options *options,
                  longshore_code expected, int expected_errno, const char *said) {
    refused(&path, 1, options, expected, expected_errno, said);
}

/* The program that a test starts as another process: maps the descriptor that it inherited. */
static int second_process(int fd, size_t len) {
    const unsigned char *data =
        (const unsigned char *)mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(data != MAP_FAILED);
    for (size_t at = 0; at < len; at++) {
        CHECK(data[at] == (at * 131 & 0xff));
    }
    return 7;
}

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
    if (argc == 4 && strcmp(argv[1], "--serve") == 0) {
        CHECK((size_t)snprintf(folder, PATH_BYTES, "%s", argv[2]) < PATH_BYTES);
        server = argv[3];
    } else {
        CHECK(argc == 1 && mkdtemp(folder) != NULL);
        /* A failed check ends the program, so main may not reach its end. */
        atexit(remove_folder);
    }
    in_folder(safetensors, "model.safetensors");
    in_folder(gguf, "model.gguf");
    in_folder(raw, "raw");
    in_folder(layers, "layers.safetensors");
    CHECK(write_safetensors(safetensors) && write_gguf(gguf) && write_raw(raw, RAW_BYTES));
    CHECK(write_layers(layers));
    const struct test *const without[] = {content_tests, sharing_tests, failure_tests,
                                          stream_tests, stream_memory_tests, stream_failure_tests,
                                          server_tests, NULL};
    const struct test *const with[] = {serve_tests, NULL};
    int passed = 0;
    for (const struct test *const *list = server ? with : without; *list != NULL; list++) {
        for (const struct test *test = *list; test->name != NULL; test++) {
            int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
            test->run();
            comes_down_to(fds, "/proc/self/fd");
            comes_down_to(threads, "/proc/self/task");
            printf("test %s ... ok\n", test->name);
            fflush(stdout);
            passed++;
        }
    }
    printf("test result: ok. %d passed; 0 failed; 0 ignored\n", passed);
    return 0;
}

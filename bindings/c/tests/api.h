/* Declarations for all tests of longshore.h. */
#ifndef API_H
#define API_H

#include <longshore.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);        \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define LEN(array) (sizeof(array) / sizeof *(array))

/* The size of a path in the test's folder, and a file length that is not a multiple of a page. */
enum { PATH_BYTES = 512, RAW_BYTES = 3 * 1024 * 1024 + 17 };

struct test {
    const char *name;
    void (*run)(void);
};

#define TEST(function) {#function, function}

/* Each array ends with an entry without a name. */
extern const struct test content_tests[], sharing_tests[], failure_tests[], serve_tests[];
extern const struct test stream_tests[], stream_memory_tests[], stream_failure_tests[];
extern const struct test server_tests[];

/* This program, its own folder, the files in it (models.h), and a buffer for another path. */
extern const char *program;
extern char folder[PATH_BYTES];
extern char safetensors[PATH_BYTES], gguf[PATH_BYTES], raw[PATH_BYTES], layers[PATH_BYTES];
extern char scratch[PATH_BYTES];

/* The socket of a server that serves that folder, if there is one. */
extern const char *server;

void in_folder(char *path, const char *name);

/* Loads one file and checks that this succeeds. */
longshore_buffer *loaded(const char *path, const longshore_load_options *options);

/* Returns the number of entries of a folder in /proc/self. */
int entries(const char *path);

/* Waits until the folder has at most count entries. The kernel still lists a thread for a moment after
 * it was joined, so that this count, and an earlier one, may include an ended thread. */
void comes_down_to(int count, const char *path);

/* Checks that a load fails with this code, errno and part of a message, and leaves nothing behind. */
void refused(const char *const *paths, size_t count, const longshore_load_options *options,
             longshore_code expected, int expected_errno, const char *said);
void refused_file(const char *path, const longshore_load_options *options,
                  longshore_code expected, int expected_errno, const char *said);

#endif

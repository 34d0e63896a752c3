/* What the tests of longshore.h have in common. */
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

/* Room for a path of the test's folder, and a file of no whole number of pages. */
enum { PATH_BYTES = 512, RAW_BYTES = 3 * 1024 * 1024 + 17 };

struct test {
    const char *name;
    void (*run)(void);
};

#define TEST(function) {#function, function}

/* Each ends with an entry without a name. */
extern const struct test content_tests[], sharing_tests[], failure_tests[], serve_tests[];

/* This program, a folder of its own, files in it (models.h), and room for the path of another. */
extern const char *program;
extern char folder[PATH_BYTES];
extern char safetensors[PATH_BYTES], gguf[PATH_BYTES], raw[PATH_BYTES], scratch[PATH_BYTES];

/* The socket of a server that serves that folder, if there is one. */
extern const char *server;

void in_folder(char *path, const char *name);

/* Loads one file, which must succeed. */
longshore_buffer *loaded(const char *path, const longshore_load_options *options);

/* How many entries a folder of /proc/self has. */
int entries(const char *path);

/* Waits until it has at most so many. The kernel lists a thread for a moment after it was joined, so the
 * count may be one too many, and what there was before as well. */
void comes_down_to(int count, const char *path);

/* Checks that a load fails like this, says so, and leaves nothing. */
void refused(const char *const *paths, size_t count, const longshore_load_options *options,
             longshore_code expected, int expected_errno, const char *said);
void refused_file(const char *path, const longshore_load_options *options,
                  longshore_code expected, int expected_errno, const char *said);

#endif

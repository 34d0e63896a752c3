/* Tests of longshore_attach and longshore_ls. */
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models.h"

const char *server;

static longshore_buffer *attached(const char *name, const longshore_load_options *options) {
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    longshore_code code = longshore_attach(server, name, options, &buffer, &error);
    if (code != LONGSHORE_OK) {
        fprintf(stderr, "%s\n", longshore_error_message(error));
    }
    CHECK(code == LONGSHORE_OK && buffer != NULL && error == NULL);
    return buffer;
}

struct listed {
    int count;
    longshore_held last;
    char path[PATH_BYTES], format[32];
};

static void list(const longshore_held *held, void *data) {
    struct listed *listed = (struct listed *)data;
    CHECK(held->size == sizeof *held);
    listed->count++;
    listed->last = *held;
    snprintf(listed->path, sizeof listed->path, "%s", held->path);
    snprintf(listed->format, sizeof listed->format, "%s", held->format);
}

static struct listed listing(void) {
    struct listed listed;
    memset(&listed, 0, sizeof listed);
    CHECK(longshore_ls(server, list, &listed, NULL) == LONGSHORE_OK);
    return listed;
}

/* The server may take a moment to process a release. */
static void held_comes_to(int count) {
    for (int tries = 0; listing().count != count; tries++) {
        CHECK(tries < 1000);
        usleep(5000);
    }
}

static void an_attached_buffer_equals_the_file(void) {
    held_comes_to(0);
    longshore_buffer *buffer = attached("model.safetensors", NULL);
    longshore_buffer *own = loaded(safetensors, NULL);
    CHECK(longshore_buffer_len(buffer) == longshore_buffer_len(own));
    CHECK(memcmp(longshore_buffer_data(buffer), longshore_buffer_data(own),
                 longshore_buffer_len(own)) == 0);
    CHECK(longshore_buffer_is_sealed(buffer) == 1 && longshore_buffer_data_mut(buffer) == NULL);
    CHECK(strcmp(longshore_buffer_heap(buffer), "attached") == 0);
    CHECK(longshore_buffer_page_size(buffer) == 0);
    CHECK(longshore_buffer_fd_len(buffer) >= longshore_buffer_len(buffer));
    CHECK(longshore_buffer_dma_buf_fd_borrow(buffer) == -1);
    CHECK(longshore_buffer_sync(buffer, LONGSHORE_SYNC_READ, NULL) == LONGSHORE_OK);

    CHECK(longshore_buffer_tensor_count(buffer) == 2);
    for (size_t at = 0; at < 2; at++) {
        const longshore_tensor *ours = longshore_buffer_tensor(own, at);
        const longshore_tensor *theirs = longshore_buffer_tensor(buffer, at);
        CHECK(strcmp(longshore_tensor_name(ours), longshore_tensor_name(theirs)) == 0);
        CHECK(longshore_tensor_offset(ours) == longshore_tensor_offset(theirs));
        CHECK(longshore_tensor_len(ours) == longshore_tensor_len(theirs));
        CHECK(memcmp(longshore_tensor_data(ours), longshore_tensor_data(theirs),
                     longshore_tensor_len(ours)) == 0);
    }
    CHECK(longshore_buffer_file_count(buffer) == 1);
    const longshore_file *file = longshore_buffer_file(buffer, 0);
    CHECK(strcmp(longshore_file_path(file), safetensors) == 0);
    CHECK(longshore_file_digest(file, LONGSHORE_VERIFY_CRC32C) == NULL);

    FILE *reader = fopen(longshore_buffer_path(buffer), "rb");
    CHECK(reader != NULL && fseek(reader, 8, SEEK_SET) == 0 && fgetc(reader) == '{');
    fclose(reader);
    longshore_stats known;
    known.size = sizeof known;
    CHECK(longshore_buffer_stats(buffer, &known, NULL) == LONGSHORE_NOT_FOUND);
    longshore_buffer_free(own);
    longshore_buffer_free(buffer);
}

static void held_models_are_listed(void) {
    held_comes_to(0);
    longshore_buffer *one = attached(gguf, NULL), *two = attached("model.gguf", NULL);
    CHECK(longshore_buffer_find_tensor(one, "blk.0.attn_q.weight") != NULL);
    struct listed listed = listing();
    CHECK(listed.count == 1 && listed.last.attachments == 2);
    CHECK(strcmp(listed.path, gguf) == 0 && strcmp(listed.format, "auto") == 0);
    CHECK(listed.last.len_bytes == longshore_buffer_len(one));
    CHECK(listed.last.done_bytes == listed.last.len_bytes);
    CHECK(listed.last.flags == LONGSHORE_HELD_READY);
    /* Its number works as a name, too. */
    char number[24];
    snprintf(number, sizeof number, "%d", (int)listed.last.id);
    longshore_buffer *three = attached(number, NULL);
    CHECK(listing().last.attachments == 3);
    /* All have the same memory. */
    int fd = longshore_buffer_fd_borrow(three);
    char *data = (char *)mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(data != MAP_FAILED && memcmp(data, longshore_buffer_data(one), 4096) == 0);
    munmap(data, 4096);
    longshore_buffer_free(one);
    longshore_buffer_free(two);
    longshore_buffer_free(three);
    held_comes_to(0);
}

static void models_can_be_attached_as_raw_bytes(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.format = "raw";
    longshore_buffer *buffer = attached(safetensors, &options);
    CHECK(longshore_buffer_tensor_count(buffer) == 0);
    longshore_buffer_free(buffer);
}

static int cancel(uint64_t done_bytes, uint64_t total_bytes, void *data) {
    (void)done_bytes;
    (void)total_bytes;
    ++*(int *)data;
    return 1;
}

/* The number of progress reports depends on the duration of the load, and may be 0. */
static void attaching_can_be_cancelled(void) {
    int calls = 0;
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.progress = cancel;
    options.progress_data = &calls;
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    longshore_code code = longshore_attach(server, raw, &options, &buffer, &error);
    CHECK(calls <= 1 && code == (calls == 0 ? LONGSHORE_OK : LONGSHORE_CANCELLED));
    CHECK((buffer != NULL) == (calls == 0) && (error != NULL) == (calls == 1));
    longshore_buffer_free(buffer);
    longshore_error_free(error);
    held_comes_to(0);
}

static void fails(const char *socket, const char *name, const longshore_load_options *options,
                  longshore_code expected, int expected_errno, const char *said) {
    int fds = entries("/proc/self/fd");
    longshore_buffer *buffer = (longshore_buffer *)&fds;
    longshore_error *error = NULL;
    longshore_code code = longshore_attach(socket, name, options, &buffer, &error);
    if (error == NULL || strstr(longshore_error_message(error), said) == NULL) {
        fprintf(stderr, "code %d: %s\n", (int)code, error ? longshore_error_message(error) : "-");
    }
    CHECK(code == expected && buffer == NULL && error != NULL);
    CHECK(longshore_error_errno(error) == expected_errno);
    CHECK(strstr(longshore_error_message(error), said) != NULL);
    longshore_error_free(error);
    comes_down_to(fds, "/proc/self/fd");
}

static void models_that_cannot_be_attached(void) {
    fails(server, "no-such-model", NULL, LONGSHORE_NOT_FOUND, ENOENT, "no-such-model");
    fails(server, "../etc/passwd", NULL, LONGSHORE_NOT_FOUND, ENOENT, "passwd");
    fails(server, "/etc/passwd", NULL, LONGSHORE_SERVER, EACCES, "the server refuses");
    in_folder(scratch, "missing");
    fails(server, scratch, NULL, LONGSHORE_CANNOT_OPEN, ENOENT, "cannot open");
    in_folder(scratch, "hostile.safetensors");
    CHECK(write_bytes(scratch, "\377\377\377\377\377\377\377\177{}", 10));
    fails(server, scratch, NULL, LONGSHORE_BAD_FORMAT, EBADMSG, "header");
    in_folder(scratch, "no-socket");
    fails(scratch, "model.gguf", NULL, LONGSHORE_SERVER, ENOENT, "no-socket");
    longshore_error *error = NULL;
    struct listed listed;
    CHECK(longshore_ls(scratch, list, &listed, &error) == LONGSHORE_SERVER);
    longshore_error_free(error);
}

static void invalid_arguments(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.align_bytes = 64;
    fails(server, raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "longshore_attach");
    options.align_bytes = 0;
    options.heap = "memfd";
    fails(server, raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "longshore_attach");
    fails(server, NULL, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "name is NULL");
    CHECK(longshore_attach(server, raw, NULL, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_ls(server, NULL, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);
}

const struct test serve_tests[] = {
    TEST(an_attached_buffer_equals_the_file),
    TEST(held_models_are_listed),
    TEST(models_can_be_attached_as_raw_bytes),
    TEST(attaching_can_be_cancelled),
    TEST(models_that_cannot_be_attached),
    TEST(invalid_arguments),
    {NULL, NULL},
};

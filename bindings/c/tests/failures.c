/* Tests of errors and of their messages. A failed call must leave nothing behind. */
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models.h"

static void paths_that_cannot_be_opened(void) {
    in_folder(scratch, "missing");
    refused_file(scratch, NULL, LONGSHORE_CANNOT_OPEN, ENOENT, "cannot open /tmp/longshore-c-");
    in_folder(scratch, "directory");
    CHECK(mkdir(scratch, 0700) == 0);
    refused_file(scratch, NULL, LONGSHORE_NOT_FOUND, ENOENT, "no safetensors and no GGUF files");
    refused_file("hf://no such/name", NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "hf://ORG/NAME");
    in_folder(scratch, "fifo");
    CHECK(mkfifo(scratch, 0600) == 0);
    refused_file(scratch, NULL, LONGSHORE_NOT_REGULAR, EINVAL, "is a FIFO");
    refused_file("/dev/null", NULL, LONGSHORE_NOT_REGULAR, EINVAL, "is a device");
    refused_file("", NULL, LONGSHORE_CANNOT_OPEN, ENOENT, "cannot open");
    /* The second of two paths: the work for the first is undone. */
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
        {"\377\377\377\377\377\377\377\177{}", 10, "more than the limit of 100.00 MB"},
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
    /* As a raw file it is valid. */
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.format = "raw";
    longshore_buffer *buffer = loaded(scratch, &options);
    CHECK(longshore_buffer_len(buffer) == 8);
    longshore_buffer_free(buffer);
}

static void an_empty_file_gives_an_empty_buffer(void) {
    in_folder(scratch, "empty");
    CHECK(write_bytes(scratch, "", 0));
    longshore_buffer *buffer = loaded(scratch, NULL);
    CHECK(longshore_buffer_len(buffer) == 0 && longshore_buffer_data(buffer) != NULL);
    CHECK(longshore_buffer_page_size(buffer) == 0);
    longshore_buffer_free(buffer);
}

static void files_that_do_not_fit_into_memory(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.memory_max_bytes = RAW_BYTES - 1;
    refused_file(raw, &options, LONGSHORE_NO_MEMORY, ENOMEM, "the limit given for this load");
    options.memory_max_bytes = RAW_BYTES;
    longshore_buffer_free(loaded(raw, &options));
    /* A sparse file, larger than the machine's memory. */
    in_folder(scratch, "vast");
    int fd = open(scratch, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(ftruncate(fd, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) + 1) == 0);
    refused_file(scratch, NULL, LONGSHORE_NO_MEMORY, ENOMEM, " are needed, but ");
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
    /* The first call may also be the last one, after everything was read: that cancels, too. */
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
    comes_down_to(fds, "/proc/self/fd");
    comes_down_to(threads, "/proc/self/task");
}

static void invalid_options(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.size = 0;
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "sizeof");
    options.size = sizeof options;
    options.heap = "shm";
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "unknown heap 'shm'");
    options.heap = NULL;
    options.mode = "mmap";
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "unknown read mode 'mmap'");
    options.mode = NULL;
    options.format = "pickle";
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "unknown format 'pickle'");
    options.format = NULL;
    options.verify = 8;
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "verify has the unknown bits");
    options.verify = 0;
    options.flags = 0x100;
    refused_file(raw, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, "flags has the unknown bits");
    options.flags = LONGSHORE_LOAD_WRITABLE;
    options.heap = "dma-heap:no-such-heap";
    refused_file(raw, &options, LONGSHORE_UNAVAILABLE, ENOENT, "no-such-heap");
    /* A program that was compiled for a later version with more fields. */
    struct {
        longshore_load_options known;
        uint64_t more;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    longshore_buffer_free(loaded(raw, &newer.known));
    newer.more = 1;
    refused_file(raw, &newer.known, LONGSHORE_INVALID_ARGUMENT, EINVAL, "does not have");
}

static void null_is_an_error(void) {
    const char *none = NULL, *path = raw;
    refused(NULL, 1, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "paths is NULL");
    refused(&path, 0, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "path_count is 0");
    refused(&none, 1, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "paths[0] is NULL");
    refused(&path, SIZE_MAX, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "more than memory can hold");
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

const struct test failure_tests[] = {
    TEST(paths_that_cannot_be_opened),
    TEST(hostile_files),
    TEST(an_empty_file_gives_an_empty_buffer),
    TEST(files_that_do_not_fit_into_memory),
    TEST(progress_and_cancelling),
    TEST(invalid_options),
    TEST(null_is_an_error),
    {NULL, NULL},
};

/* Tests of descriptors, paths and pointers, shared with threads and processes. */
#include "api.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

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
        /* root can open it for writing. */
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

/* Tests udmabuf if the machine has it, and its errors if not. */
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

static void each_reader_has_its_own_position(void) {
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

static void running_out_of_descriptors_is_an_error(void) {
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
    /* F_DUPFD fails with EINVAL if its minimum exceeds the limit. */
    CHECK(longshore_error_errno(first) == EMFILE || longshore_error_errno(first) == EINVAL);
    CHECK(longshore_error_errno(second) == EMFILE);
    longshore_error_free(first);
    longshore_error_free(second);
    longshore_buffer_free(buffer);
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

const struct test sharing_tests[] = {
    TEST(sealed_content_cannot_be_written),
    TEST(writable_content_is_shared),
    TEST(dma_buf),
    TEST(descriptors_outlive_the_buffer),
    TEST(each_reader_has_its_own_position),
    TEST(running_out_of_descriptors_is_an_error),
    TEST(another_process_sees_the_content),
    TEST(threads),
    {NULL, NULL},
};

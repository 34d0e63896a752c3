/*
 * Loads a model file, lists its tensors, and hands the memory to another process.
 *
 *   load FILE
 *
 * The other process is this program again, started anew: it gets the descriptor over a Unix socket
 * (SCM_RIGHTS), maps it, and holds it against the file on the disk. Nothing is copied on the way.
 */
#include <longshore.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int show_progress(uint64_t done_bytes, uint64_t total_bytes, void *data) {
    (void)data;
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%3.0f %%%s", total_bytes ? 100.0 * done_bytes / total_bytes : 100.0,
                done_bytes == total_bytes ? "\n" : "");
    }
    return 0; /* Anything else would cancel the load. */
}

/* A name may hold any character; a terminal is to obey none of them. */
static void print_name(const char *name) {
    for (; *name != '\0'; name++) {
        putchar((unsigned char)*name < ' ' || *name == 0x7f ? '?' : *name);
    }
}

static void list_tensors(const longshore_buffer *buffer) {
    size_t count = longshore_buffer_tensor_count(buffer);
    for (size_t at = 0; at < count; at++) {
        const longshore_tensor *tensor = longshore_buffer_tensor(buffer, at);
        print_name(longshore_tensor_name(tensor));
        printf("  %s [", longshore_tensor_dtype(tensor));
        for (size_t axis = 0; axis < longshore_tensor_ndim(tensor); axis++) {
            printf("%s%" PRIu64, axis ? ", " : "", longshore_tensor_shape(tensor)[axis]);
        }
        printf("]  %" PRIu64 " bytes at %" PRIu64 "\n", longshore_tensor_len(tensor),
               longshore_tensor_offset(tensor));
    }
}

/* Sends the length of the content, and the descriptor beside it. */
static int send_buffer(int socket, const longshore_buffer *buffer) {
    uint64_t len = longshore_buffer_len(buffer);
    int fd = longshore_buffer_fd_borrow(buffer);
    struct iovec bytes = {.iov_base = &len, .iov_len = sizeof len};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.room = {0}};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof len ? 0 : -1;
}

/* The descriptor that comes over a socket, and the length that comes with it; -1 without one. */
static int receive_fd(int socket, uint64_t *len) {
    int fd = -1;
    struct iovec bytes = {.iov_base = len, .iov_len = sizeof *len};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.room = {0}};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *len) {
        return -1;
    }
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights != NULL && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
        rights->cmsg_len == CMSG_LEN(sizeof fd)) {
        memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    }
    return fd;
}

/* Whether the memory holds what the file does. */
static int same_as_file(const char *data, uint64_t len, const char *path) {
    static char chunk[1 << 16];
    FILE *file = fopen(path, "rb");
    uint64_t done = 0;
    size_t got = 0;
    if (file == NULL) {
        return 0;
    }
    while ((got = fread(chunk, 1, sizeof chunk, file)) > 0) {
        if (got > len - done || memcmp(chunk, data + done, got) != 0) {
            break;
        }
        done += got;
    }
    int same = !ferror(file) && feof(file) && got == 0 && done == len;
    fclose(file);
    return same;
}

/* The other process. */
static int receive(int socket, const char *path) {
    uint64_t len = 0;
    int fd = receive_fd(socket, &len);
    if (fd < 0) {
        fprintf(stderr, "no descriptor came\n");
        return EXIT_FAILURE;
    }
    char *data = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        perror("mmap");
        return EXIT_FAILURE;
    }
    int same = same_as_file(data, len, path);
    printf("another process mapped %" PRIu64 " bytes: %s\n", len,
           same ? "they are those of the file" : "they are NOT those of the file");
    munmap(data, len);
    close(fd);
    return same ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Starts the other process and gives it the buffer. */
static int hand_over(const longshore_buffer *buffer, char *program, char *path) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
        perror("socketpair");
        return EXIT_FAILURE;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return EXIT_FAILURE;
    }
    if (child == 0) {
        char *words[] = {program, "--receive", path, NULL};
        /* The program that is started knows the socket as its standard input. */
        if (dup2(sockets[1], STDIN_FILENO) == STDIN_FILENO) {
            execvp(program, words);
        }
        perror(program);
        _exit(127);
    }
    close(sockets[1]);
    int status = 0;
    int sent = send_buffer(sockets[0], buffer);
    close(sockets[0]);
    if (sent != 0) {
        perror("sendmsg");
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        return EXIT_FAILURE;
    }
    return sent == 0 ? WEXITSTATUS(status) : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--receive") == 0) {
        return receive(STDIN_FILENO, argv[2]);
    }
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    const char *path = argv[1];
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.progress = show_progress;
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    if (longshore_load(&path, 1, &options, &buffer, &error) != LONGSHORE_OK) {
        fprintf(stderr, "error: %s\n", longshore_error_message(error));
        longshore_error_free(error);
        return EXIT_FAILURE;
    }
    longshore_stats stats = {.size = sizeof stats};
    if (longshore_buffer_stats(buffer, &stats, NULL) == LONGSHORE_OK) {
        printf("%" PRIu64 " bytes in %.3f s into %s\n", stats.content_bytes,
               stats.elapsed_ns / 1e9, longshore_buffer_heap(buffer));
    }
    list_tensors(buffer);
    int status = hand_over(buffer, argv[0], argv[1]);
    longshore_buffer_free(buffer);
    return status;
}

/* Tests of files on servers: of the options, and of a server in a thread of this program. */
#include "streams.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "models.h"

static const char SECRET[] = "a-secret-that-nothing-shows";

/* Opens a port of this machine, and writes the URL of a file of it. */
static int listener(char *url, size_t len) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(fd, 16) == 0);
    socklen_t size = sizeof address;
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    snprintf(url, len, "http://127.0.0.1:%d/model.safetensors", ntohs(address.sin_port));
    return fd;
}

/* Checks that neither a load nor a stream can be opened. */
static void both_refused(const char *path, const longshore_load_options *load,
                         longshore_code expected, int expected_errno, const char *said) {
    refused_file(path, load, expected, expected_errno, said);
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.storage_options = load->storage_options;
    options.storage_option_count = load->storage_option_count;
    options.timeout_ms = load->timeout_ms;
    options.connections = load->connections;
    longshore_stream *stream = NULL;
    longshore_error *error = NULL;
    CHECK(longshore_stream_open(&path, 1, &options, &stream, &error) == expected);
    CHECK(stream == NULL && longshore_error_errno(error) == expected_errno);
    CHECK(strstr(longshore_error_message(error), said) != NULL);
    CHECK(strstr(longshore_error_message(error), SECRET) == NULL);
    longshore_error_free(error);
}

static void invalid_options_of_servers(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.connections = 257;
    both_refused(safetensors, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL,
                 "connections is 257, which is more than 256");
    options.connections = 0;
    options.storage_option_count = 1;
    both_refused(safetensors, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL,
                 "storage_options is NULL");
    struct {
        longshore_storage_option given;
        const char *said;
    } cases[] = {
        {{NULL, SECRET}, "storage_options[0].name is NULL"},
        {{"aws_region", NULL}, "storage_options[0].value is NULL"},
        {{"aws_region", "\377"}, "storage_options[0].value is not UTF-8"},
        {{"aws_acess_key", SECRET}, "\"aws_acess_key\" is no option"},
    };
    for (size_t at = 0; at < LEN(cases); at++) {
        options.storage_options = &cases[at].given;
        both_refused(safetensors, &options, LONGSHORE_INVALID_ARGUMENT, EINVAL, cases[at].said);
    }
    longshore_storage_option endpoint = {"aws_endpoint_url", SECRET};
    options.storage_options = &endpoint;
    both_refused("s3://bucket/model.safetensors", &options, LONGSHORE_CANNOT_OPEN, EINVAL,
                 "aws_endpoint is not a URL");
}

static void a_program_of_an_older_version_has_no_options_of_servers(void) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.size = offsetof(longshore_load_options, storage_options);
    options.connections = 257;
    longshore_buffer_free(loaded(safetensors, &options));
}

static void a_refused_connection_is_an_error(void) {
    char url[PATH_BYTES];
    CHECK(close(listener(url, sizeof url)) == 0);
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    both_refused(url, &options, LONGSHORE_CANNOT_OPEN, ECONNREFUSED, url);
}

static void a_server_that_does_not_answer_ends_a_call_at_its_time_limit(void) {
    char url[PATH_BYTES];
    int fd = listener(url, sizeof url);
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.timeout_ms = 200;
    both_refused(url, &options, LONGSHORE_CANNOT_OPEN, ETIMEDOUT, "time limit");
    CHECK(close(fd) == 0);
}

/* A server of one file, for one connection at a time. */
struct server {
    int listens;
    char content[8 << 20];
    size_t len;
};

static void *serve_file(void *data) {
    struct server *server = (struct server *)data;
    int fd;
    while ((fd = accept(server->listens, NULL, NULL)) >= 0) {
        char head[8192];
        size_t got = 0;
        ssize_t part;
        while ((part = recv(fd, head + got, sizeof head - 1 - got, 0)) > 0) {
            got += (size_t)part;
            head[got] = 0;
            if (strstr(head, "\r\n\r\n") == NULL) {
                continue;
            }
            const char *range = strcasestr(head, "\r\nrange: bytes=");
            unsigned long first = 0, last = 0;
            CHECK(range != NULL && sscanf(range + 15, "%lu-%lu", &first, &last) == 2);
            last = last < server->len ? last : server->len - 1;
            char answer[256];
            int len = snprintf(answer, sizeof answer,
                               "HTTP/1.1 206 Partial Content\r\nContent-Length: %lu\r\n"
                               "Content-Range: bytes %lu-%lu/%zu\r\n\r\n",
                               last + 1 - first, first, last, server->len);
            CHECK(send(fd, answer, (size_t)len, MSG_NOSIGNAL) == len);
            while (first <= last) {
                part = send(fd, server->content + first, last + 1 - first, MSG_NOSIGNAL);
                CHECK(part > 0);
                first += (size_t)part;
            }
            got = 0;
        }
        close(fd);
    }
    return NULL;
}

static void a_file_of_a_server_is_loaded_and_streamed(void) {
    static struct server server;
    char url[PATH_BYTES];
    server.listens = listener(url, sizeof url);
    FILE *file = fopen(safetensors, "rb");
    CHECK(file != NULL);
    server.len = fread(server.content, 1, sizeof server.content, file);
    CHECK(server.len > 0 && server.len < sizeof server.content && fclose(file) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve_file, &server) == 0);

    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.timeout_ms = 60000;
    options.connections = 1;
    longshore_buffer *buffer = loaded(url, &options);
    longshore_stats stats;
    stats.size = sizeof stats;
    CHECK(longshore_buffer_stats(buffer, &stats, NULL) == LONGSHORE_OK);
    CHECK(stats.remote_bytes == server.len && stats.content_bytes == server.len);
    CHECK(stats.direct_bytes + stats.page_cache_bytes + stats.buffered_bytes == 0);
    CHECK(memcmp(longshore_buffer_data(buffer), server.content, server.len) == 0);
    longshore_buffer_free(buffer);

    longshore_stream_options streaming = LONGSHORE_STREAM_OPTIONS_INIT;
    streaming.timeout_ms = 60000;
    streaming.connections = 1;
    longshore_stream *stream = NULL;
    const char *path = url;
    CHECK(longshore_stream_open(&path, 1, &streaming, &stream, NULL) == LONGSHORE_OK);
    longshore_streamed_tensor *tensor = NULL;
    size_t count = 0;
    while (longshore_stream_next(stream, &tensor, NULL) == LONGSHORE_OK && tensor != NULL) {
        longshore_streamed_tensor_free(tensor);
        count++;
    }
    longshore_stream_report report;
    report.size = sizeof report;
    CHECK(longshore_stream_stats(stream, &report, NULL) == LONGSHORE_OK);
    CHECK(count == report.selected_tensors && report.remote_bytes >= report.selected_bytes);
    longshore_stream_free(stream);

    CHECK(shutdown(server.listens, SHUT_RDWR) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && close(server.listens) == 0);
}

const struct test server_tests[] = {
    TEST(invalid_options_of_servers),
    TEST(a_program_of_an_older_version_has_no_options_of_servers),
    TEST(a_refused_connection_is_an_error),
    TEST(a_server_that_does_not_answer_ends_a_call_at_its_time_limit),
    TEST(a_file_of_a_server_is_loaded_and_streamed),
    {NULL, NULL},
};

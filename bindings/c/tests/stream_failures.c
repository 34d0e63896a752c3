/* Tests of errors of streams. A failed call must leave nothing behind. */
#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "models.h"

/* Checks that a stream cannot be opened, with this code, errno and part of a message. */
static void not_opened(const char *const *paths, size_t count,
                       const longshore_stream_options *options, longshore_code expected,
                       int expected_errno, const char *said) {
    int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    longshore_stream *stream = (longshore_stream *)&fds;
    longshore_error *error = NULL;
    longshore_code code = longshore_stream_open(paths, count, options, &stream, &error);
    if (code != expected || error == NULL || strstr(longshore_error_message(error), said) == NULL) {
        fprintf(stderr, "code %d: %s\n", (int)code, error ? longshore_error_message(error) : "-");
    }
    CHECK(code == expected && stream == NULL && error != NULL);
    CHECK(longshore_error_code(error) == expected);
    CHECK(longshore_error_errno(error) == expected_errno);
    CHECK(strstr(longshore_error_message(error), said) != NULL);
    longshore_error_free(error);
    comes_down_to(fds, "/proc/self/fd");
    comes_down_to(threads, "/proc/self/task");
}

/* Checks that the options are an invalid argument for the layers. */
static void invalid(const longshore_stream_options *options, const char *said) {
    const char *path = layers;
    not_opened(&path, 1, options, LONGSHORE_INVALID_ARGUMENT, EINVAL, said);
}

static void files_that_cannot_be_streamed(void) {
    const char *path = scratch;
    in_folder(scratch, "missing.safetensors");
    not_opened(&path, 1, NULL, LONGSHORE_CANNOT_OPEN, ENOENT, "cannot open /tmp/longshore-c-");
    const char *second[] = {layers, scratch};
    not_opened(second, 2, NULL, LONGSHORE_CANNOT_OPEN, ENOENT, "missing.safetensors");
    path = "/dev/null";
    not_opened(&path, 1, NULL, LONGSHORE_NOT_REGULAR, EINVAL, "is a device");
    path = raw;
    not_opened(&path, 1, NULL, LONGSHORE_BAD_FORMAT, EBADMSG, "no tensors are known in");
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.format = "gguf";
    not_opened(&path, 1, &options, LONGSHORE_BAD_FORMAT, EBADMSG, "not a valid GGUF file");
    options.format = NULL;
    path = layers;
    options.manifest = scratch;
    not_opened(&path, 1, &options, LONGSHORE_CANNOT_OPEN, ENOENT, "missing");
    options.manifest = NULL;
    options.memory_bytes = 1 << 20;
    not_opened(&path, 1, &options, LONGSHORE_NO_MEMORY, ENOMEM, ".weight");
}

static void selections_that_do_not_fit(void) {
    const char *names[] = {"scale", "norm"}, *patterns[] = {"layers.9.*"};
    const char *files[] = {"other.safetensors"};
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.names = names;
    options.name_count = 2;
    invalid(&options, "no tensor of the selected files is named \"norm\"");
    options.names = NULL;
    options.name_count = 0;
    options.patterns = patterns;
    options.pattern_count = 1;
    invalid(&options, "layers.9.*");
    options.patterns = NULL;
    options.pattern_count = 0;
    options.files = files;
    options.file_count = 1;
    invalid(&options, "is not one of the opened files");
    options.files = NULL;
    options.file_count = 0;

    longshore_rows rows = LONGSHORE_ROWS_INIT;
    options.rows = &rows;
    options.rows_count = 1;
    rows.name = "layers.1.weight";
    rows.start = 5;
    rows.end = ROWS + 1;
    invalid(&options, "has 12 rows; rows 5 to 13 are selected");
    rows.end = 4;
    invalid(&options, "rows 5 to 4 are selected");
    rows.name = "norm";
    invalid(&options, "norm");
    rows.name = "scale";
    invalid(&options, "is a scalar");
    rows.name = NULL;
    rows.start = rows.end = 0;
    rows.share_index = rows.share_count = 3;
    invalid(&options, "part 3 of 3 is selected");
    rows.share_index = 0;
    options.verify = LONGSHORE_VERIFY_XXH3;
    invalid(&options, "needs the whole file");
}

static void invalid_fields(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.size = 135;
    invalid(&options, "set it to sizeof(longshore_stream_options)");
    options.size = 4097;
    invalid(&options, "set it to sizeof(longshore_stream_options)");
    options.size = sizeof options;
    options.flags = 8;
    invalid(&options, "options: flags has the unknown bits 0x8");
    options.flags = 0;
    options.verify = 8;
    invalid(&options, "options: verify has the unknown bits 0x8");
    options.verify = 0;
    options.mode = "mmap";
    invalid(&options, "unknown read mode 'mmap'");
    options.mode = NULL;
    options.format = "pickle";
    invalid(&options, "unknown format 'pickle'");

    /* A program that was compiled for a later version with more fields. */
    struct {
        longshore_stream_options known;
        uint64_t more;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    longshore_stream_free(streamed(layers, &newer.known));
    newer.more = 1;
    invalid(&newer.known, "does not have");
}

static void invalid_arrays(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    const char *names[] = {"scale", NULL, "\377"};
    options.names = names;
    invalid(&options, "options: names is not NULL, but has 0 elements");
    options.name_count = 2;
    invalid(&options, "options: names[1] is NULL");
    names[1] = "scale";
    options.name_count = 3;
    invalid(&options, "options: names[2] is '");
    options.names = NULL;
    invalid(&options, "options: names is NULL");
    options.name_count = 0;
    options.pattern_count = 1;
    invalid(&options, "options: patterns is NULL");
    options.pattern_count = 0;
    options.file_count = 1;
    invalid(&options, "options: files is NULL");
    options.file_count = 0;
    options.rows_count = 1;
    invalid(&options, "options: rows[0] is NULL");

    longshore_rows rows[] = {LONGSHORE_ROWS_INIT, LONGSHORE_ROWS_INIT};
    options.rows = rows;
    options.rows_count = 0;
    invalid(&options, "options: rows is not NULL, but has 0 elements");
    options.rows_count = 2;
    rows[1].size = 0;
    invalid(&options, "options: rows[1]: size is 0; set it to sizeof(longshore_rows)");
    rows[1].size = sizeof rows[1];
    rows[1].share_index = 1;
    invalid(&options, "options: rows[1] is neither a range nor a share");
    rows[1].share_count = 2;
    rows[1].end = 1;
    invalid(&options, "options: rows[1] is neither a range nor a share");
    rows[1].end = 0;
    rows[1].name = "\377";
    invalid(&options, "options: rows[1].name is '");

    /* Elements of a later version are longer. */
    struct {
        longshore_rows known;
        uint64_t more;
    } newer[2];
    memset(newer, 0, sizeof newer);
    newer[0].known.size = newer[1].known.size = sizeof newer[0];
    newer[0].known.name = "layers.0.weight";
    newer[1].known.name = "layers.1.weight";
    newer[0].known.end = newer[1].known.end = 1;
    options.rows = &newer[0].known;
    longshore_stream *stream = streamed(layers, &options);
    CHECK(report_of(stream).selected_bytes == 3 * LAYER_BYTES + 2 * COLUMNS + 8 * LAYERS + 1);
    longshore_stream_free(stream);
    newer[1].known.size = sizeof newer[1].known;
    invalid(&options, "options: rows[1]: size is 48, but that of rows[0] is 56");
    newer[1].known.size = sizeof newer[1];
    newer[1].more = 1;
    invalid(&options, "options: rows[1]: a field is set");
}

/* A file that changes, or is truncated, after the first tensor. */
static void files_that_change(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.memory_bytes = MEMORY_OF_ONE;
    in_folder(scratch, "changed.safetensors");
    for (int is_truncated = 0; is_truncated < 2; is_truncated++) {
        CHECK(write_layers(scratch));
        longshore_stream *stream = streamed(scratch, &options);
        longshore_streamed_tensor *first = next(stream);
        is_of_layers(first);
        if (is_truncated) {
            CHECK(truncate(scratch, 2 * LAYER_BYTES) == 0);
        } else {
            int fd = open(scratch, O_WRONLY | O_APPEND);
            CHECK(write(fd, "x", 1) == 1 && close(fd) == 0);
        }
        next_fails(stream, LONGSHORE_FILE_CHANGED, ESTALE, "changed.safetensors");
        next_fails(stream, LONGSHORE_STREAM_FAILED, EIO, "the stream has failed before: ");
        is_of_layers(first);
        longshore_streamed_tensor_free(first);
        next_fails(stream, LONGSHORE_STREAM_FAILED, EIO, "the stream has failed before: ");
        longshore_stream_free(stream);
    }
}

static void null_is_no_stream(void) {
    const char *none = NULL, *path = layers;
    not_opened(NULL, 1, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "paths is NULL");
    not_opened(&path, 0, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "path_count is 0");
    not_opened(&none, 1, NULL, LONGSHORE_INVALID_ARGUMENT, EINVAL, "paths[0] is NULL");
    CHECK(longshore_stream_open(&path, 1, NULL, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);

    longshore_stream *stream = streamed(layers, NULL);
    longshore_streamed_tensor *tensor = (longshore_streamed_tensor *)&path;
    CHECK(longshore_stream_next(NULL, &tensor, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(tensor == NULL);
    CHECK(longshore_stream_next(stream, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);
    /* Nothing was taken from the stream. */
    tensor = next(stream);
    CHECK(strcmp(name_of(tensor), "layers.0.weight") == 0);
    longshore_streamed_tensor_free(tensor);

    struct {
        longshore_stream_report known;
        uint64_t more;
    } newer;
    memset(&newer, 0xff, sizeof newer);
    longshore_error *error = NULL;
    CHECK(longshore_stream_stats(stream, &newer.known, &error) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(strstr(longshore_error_message(error), "sizeof(longshore_stream_report)") != NULL);
    longshore_error_free(error);
    newer.known.size = sizeof newer;
    CHECK(longshore_stream_stats(stream, &newer.known, NULL) == LONGSHORE_OK);
    CHECK(newer.known.size == sizeof newer && newer.more == 0);
    CHECK(newer.known.yielded_tensors == 1);
    CHECK(longshore_stream_stats(NULL, &newer.known, NULL) == LONGSHORE_INVALID_ARGUMENT);
    CHECK(longshore_stream_stats(stream, NULL, NULL) == LONGSHORE_INVALID_ARGUMENT);
    longshore_stream_free(stream);

    CHECK(longshore_stream_file_count(NULL) == 0 && longshore_stream_file(NULL, 0) == NULL);
    CHECK(longshore_streamed_tensor_view(NULL) == NULL);
    CHECK(longshore_streamed_tensor_data_mut(NULL) == NULL);
    CHECK(longshore_streamed_tensor_first_row(NULL) == 0);
    longshore_stream_cancel(NULL);
    longshore_streamed_tensor_free(NULL);
    longshore_stream_free(NULL);
}

const struct test stream_failure_tests[] = {
    TEST(files_that_cannot_be_streamed),
    TEST(selections_that_do_not_fit),
    TEST(invalid_fields),
    TEST(invalid_arrays),
    TEST(files_that_change),
    TEST(null_is_no_stream),
    {NULL, NULL},
};

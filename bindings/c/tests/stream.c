/* Tests of the tensors of streams: content, selection and checksums. */
#include "streams.h"

#include <errno.h>
#include <string.h>

#include "models.h"

longshore_stream *streamed(const char *path, const longshore_stream_options *options) {
    longshore_stream *stream = NULL;
    longshore_error *error = NULL;
    longshore_code code = longshore_stream_open(&path, 1, options, &stream, &error);
    if (code != LONGSHORE_OK) {
        fprintf(stderr, "%s\n", longshore_error_message(error));
    }
    CHECK(code == LONGSHORE_OK && stream != NULL && error == NULL);
    return stream;
}

longshore_streamed_tensor *next(longshore_stream *stream) {
    longshore_streamed_tensor *tensor = NULL;
    longshore_error *error = NULL;
    longshore_code code = longshore_stream_next(stream, &tensor, &error);
    if (code != LONGSHORE_OK) {
        fprintf(stderr, "%s\n", longshore_error_message(error));
    }
    CHECK(code == LONGSHORE_OK && error == NULL);
    return tensor;
}

void ends(longshore_stream *stream) {
    CHECK(next(stream) == NULL && next(stream) == NULL);
    longshore_stream_free(stream);
}

void next_fails(longshore_stream *stream, longshore_code expected, int expected_errno,
                const char *said) {
    longshore_streamed_tensor *tensor = (longshore_streamed_tensor *)&expected;
    longshore_error *error = NULL;
    longshore_code code = longshore_stream_next(stream, &tensor, &error);
    if (code != expected || error == NULL || strstr(longshore_error_message(error), said) == NULL) {
        fprintf(stderr, "code %d: %s\n", (int)code, error ? longshore_error_message(error) : "-");
    }
    CHECK(code == expected && tensor == NULL && error != NULL);
    CHECK(longshore_error_code(error) == expected);
    CHECK(longshore_error_errno(error) == expected_errno);
    CHECK(strstr(longshore_error_message(error), said) != NULL);
    longshore_error_free(error);
}

longshore_stream_report report_of(const longshore_stream *stream) {
    longshore_stream_report report;
    report.size = sizeof report;
    CHECK(longshore_stream_stats(stream, &report, NULL) == LONGSHORE_OK);
    CHECK(report.size == sizeof report);
    return report;
}

const char *name_of(const longshore_streamed_tensor *tensor) {
    return longshore_tensor_name(longshore_streamed_tensor_view(tensor));
}

const void *data_of(const longshore_streamed_tensor *tensor) {
    return longshore_tensor_data(longshore_streamed_tensor_view(tensor));
}

void is_of_layers(const longshore_streamed_tensor *tensor) {
    const longshore_tensor *view = longshore_streamed_tensor_view(tensor);
    const unsigned char *data = (const unsigned char *)longshore_tensor_data(view);
    const uint64_t *shape = longshore_tensor_shape(view);
    size_t ndim = longshore_tensor_ndim(view);
    char kind[16] = "";
    int layer = -1;
    CHECK(strcmp(longshore_tensor_dtype(view), "U8") == 0);
    CHECK(longshore_streamed_tensor_first_row(tensor) == 0);
    if (sscanf(name_of(tensor), "layers.%d.%15s", &layer, kind) == 0) {
        CHECK(strcmp(name_of(tensor), "scale") == 0 && ndim == 0);
        CHECK(longshore_tensor_len(view) == 1 && data[0] == 42);
    } else if (strcmp(kind, "bias") == 0) {
        CHECK(ndim == 1 && shape[0] == 8 && longshore_tensor_len(view) == 8);
        CHECK((uintptr_t)data % 64 == 0 && data[0] == layer && data[7] == layer);
    } else {
        CHECK(strcmp(kind, "weight") == 0 && layer >= 0 && layer < LAYERS);
        CHECK(ndim == 2 && shape[0] == ROWS && shape[1] == COLUMNS);
        CHECK(longshore_tensor_len(view) == LAYER_BYTES && are_rows(data, layer, 0, ROWS));
    }
}

static void a_stream_yields_the_tensors_of_the_file(void) {
    longshore_stream *stream = streamed(layers, NULL);
    for (int at = 0; at < LAYERS_TENSORS; at++) {
        longshore_streamed_tensor *tensor = next(stream);
        char expected[32] = "scale";
        if (at < 2 * LAYERS) {
            snprintf(expected, sizeof expected, "layers.%d.%s", at / 2, at % 2 ? "bias" : "weight");
        }
        CHECK(strcmp(name_of(tensor), expected) == 0);
        is_of_layers(tensor);
        const longshore_tensor *view = longshore_streamed_tensor_view(tensor);
        CHECK(longshore_tensor_name_len(view) == strlen(expected));
        CHECK(longshore_tensor_offset(view) == 0 && longshore_tensor_file_index(view) == 0);
        /* A change of the data stays in this process. */
        memset(longshore_streamed_tensor_data_mut(tensor), 0xff, longshore_tensor_len(view));
        CHECK(*(const unsigned char *)longshore_tensor_data(view) == 0xff);
        longshore_streamed_tensor_free(tensor);
    }
    CHECK(next(stream) == NULL);
    longshore_stream_report report = report_of(stream);
    CHECK(report.selected_tensors == LAYERS_TENSORS && report.yielded_tensors == LAYERS_TENSORS);
    CHECK(report.selected_bytes == LAYERS * (LAYER_BYTES + 8) + 1);
    CHECK(report.read_bytes >= report.selected_bytes && report.memory_bytes >= LAYER_BYTES);
    CHECK(report.direct_bytes + report.page_cache_bytes + report.uncached_bytes +
              report.buffered_bytes == report.read_bytes);
    CHECK(report.grown_bytes == 0 && report.elapsed_ns > 0);
    ends(stream);
    stream = streamed(layers, NULL);
    longshore_streamed_tensor *again = next(stream);
    is_of_layers(again);
    longshore_streamed_tensor_free(again);
    longshore_stream_free(stream);
}

static void modes_and_formats(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    const char *modes[] = {"auto", "buffered", "uncached"};
    for (size_t at = 0; at < LEN(modes); at++) {
        options.mode = modes[at];
        longshore_stream *stream = streamed(layers, &options);
        for (int left = LAYERS_TENSORS; left > 0; left--) {
            longshore_streamed_tensor *tensor = next(stream);
            is_of_layers(tensor);
            longshore_streamed_tensor_free(tensor);
        }
        ends(stream);
    }
    options.mode = NULL;
    options.format = "gguf";
    longshore_stream *stream = streamed(gguf, &options);
    longshore_streamed_tensor *embedding = next(stream), *norm = next(stream);
    longshore_streamed_tensor *query = next(stream);
    CHECK(strcmp(name_of(embedding), "token_embd.weight") == 0);
    CHECK(strcmp(name_of(norm), "output_norm.weight") == 0);
    const longshore_tensor *view = longshore_streamed_tensor_view(query);
    CHECK(strcmp(longshore_tensor_dtype(view), "Q8_0") == 0 && longshore_tensor_len(view) == 136);
    CHECK(((const unsigned char *)longshore_tensor_data(view))[1] == 37);
    longshore_streamed_tensor_free(embedding);
    longshore_streamed_tensor_free(norm);
    longshore_streamed_tensor_free(query);
    ends(stream);
}

/* Direct reads, by io_uring and by threads; some file systems do not support them. */
static void direct_reads_of_a_stream(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.mode = "direct";
    for (options.flags = 0; options.flags <= LONGSHORE_STREAM_NO_URING; options.flags++) {
        longshore_stream *stream = streamed(layers, &options);
        longshore_streamed_tensor *tensor = NULL;
        longshore_error *error = NULL;
        if (longshore_stream_next(stream, &tensor, &error) != LONGSHORE_OK) {
            CHECK(longshore_error_code(error) == LONGSHORE_UNAVAILABLE);
            CHECK(longshore_error_errno(error) == EOPNOTSUPP);
            longshore_error_free(error);
            longshore_stream_free(stream);
            continue;
        }
        for (; tensor != NULL; tensor = next(stream)) {
            is_of_layers(tensor);
            longshore_streamed_tensor_free(tensor);
        }
        longshore_stream_report report = report_of(stream);
        CHECK(report.direct_bytes > 0 && (options.flags == 0 || report.used_uring == 0));
        ends(stream);
    }
}

/* Checks that a stream of the options yields the tensors of these names, which it frees. */
static void yields(const longshore_stream_options *options, const char *const *names,
                   size_t count) {
    longshore_stream *stream = streamed(layers, options);
    CHECK(report_of(stream).selected_tensors == count);
    for (size_t at = 0; at < count; at++) {
        longshore_streamed_tensor *tensor = next(stream);
        CHECK(strcmp(name_of(tensor), names[at]) == 0);
        is_of_layers(tensor);
        longshore_streamed_tensor_free(tensor);
    }
    ends(stream);
}

static void selection_of_names_and_patterns(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    const char *names[] = {"scale", "layers.3.weight"};
    const char *named[] = {"layers.3.weight", "scale"};
    options.names = names;
    options.name_count = LEN(names);
    yields(&options, named, LEN(named));
    const char *patterns[] = {"layers.?.bias", "*.0.*"};
    const char *both[] = {"layers.0.weight", "layers.0.bias", "layers.1.bias",  "layers.2.bias",
                          "layers.3.weight", "layers.3.bias", "layers.4.bias", "scale"};
    options.patterns = patterns;
    options.pattern_count = LEN(patterns);
    yields(&options, both, LEN(both));
    const char *matching[] = {"layers.0.bias", "layers.1.bias", "layers.2.bias", "layers.3.bias",
                              "layers.4.bias"};
    options.names = NULL;
    options.name_count = 0;
    options.pattern_count = 1;
    yields(&options, matching, LEN(matching));
}

static void selection_of_files(void) {
    const char *paths[] = {layers, safetensors}, *files[] = {"model.safetensors"};
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.files = files;
    options.file_count = LEN(files);
    longshore_stream *stream = NULL;
    CHECK(longshore_stream_open(paths, LEN(paths), &options, &stream, NULL) == LONGSHORE_OK);
    CHECK(longshore_stream_file_count(stream) == 2 && longshore_stream_file(stream, 2) == NULL);
    for (size_t at = 0; at < 2; at++) {
        const longshore_file *file = longshore_stream_file(stream, at);
        CHECK(strcmp(longshore_file_path(file), paths[at]) == 0);
        CHECK(longshore_file_offset(file) == 0);
        CHECK(longshore_file_digest(file, LONGSHORE_VERIFY_SHA256) == NULL);
    }
    CHECK(longshore_file_len(longshore_stream_file(stream, 0)) > LAYERS * LAYER_BYTES);
    longshore_streamed_tensor *weight = next(stream), *bias = next(stream);
    const longshore_tensor *view = longshore_streamed_tensor_view(weight);
    CHECK(strcmp(name_of(weight), "weight") == 0 && longshore_tensor_file_index(view) == 1);
    for (size_t at = 0; at < 64 * 1024; at++) {
        CHECK(((const float *)data_of(weight))[at] == (float)at / 4);
    }
    CHECK(strcmp(name_of(bias), "bias") == 0);
    longshore_streamed_tensor_free(bias);
    longshore_streamed_tensor_free(weight);
    ends(stream);
}

/* Checks the rows of the next tensor, which is the weight of a layer, and frees it. */
static void next_has_rows(longshore_stream *stream, int layer, int first, int count) {
    longshore_streamed_tensor *tensor = next(stream);
    const longshore_tensor *view = longshore_streamed_tensor_view(tensor);
    CHECK(longshore_tensor_ndim(view) == 2);
    CHECK(longshore_tensor_shape(view)[0] == (uint64_t)count);
    CHECK(longshore_tensor_shape(view)[1] == COLUMNS);
    CHECK(longshore_tensor_len(view) == (uint64_t)count * COLUMNS);
    CHECK(longshore_streamed_tensor_first_row(tensor) == (uint64_t)first);
    CHECK(are_rows(longshore_tensor_data(view), layer, first, count));
    longshore_streamed_tensor_free(tensor);
}

static void selection_of_rows(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    const char *weights[] = {"layers.*.weight"};
    longshore_rows rows[] = {LONGSHORE_ROWS_INIT, LONGSHORE_ROWS_INIT};
    options.patterns = weights;
    options.pattern_count = 1;
    options.rows = rows;
    options.rows_count = 1;
    rows[0].start = 3;
    rows[0].end = 5;
    longshore_stream *stream = streamed(layers, &options);
    for (int layer = 0; layer < LAYERS; layer++) {
        next_has_rows(stream, layer, 3, 2);
    }
    CHECK(next(stream) == NULL);
    longshore_stream_report report = report_of(stream);
    CHECK(report.selected_bytes == 2 * LAYERS * COLUMNS);
    CHECK(report.read_bytes < LAYERS * LAYER_BYTES / 3);
    ends(stream);
    /* The rows of one tensor instead of those of all. */
    rows[1].name = "layers.2.weight";
    rows[1].start = 1;
    rows[1].end = ROWS;
    options.rows_count = 2;
    stream = streamed(layers, &options);
    for (int layer = 0; layer < LAYERS; layer++) {
        next_has_rows(stream, layer, layer == 2 ? 1 : 3, layer == 2 ? ROWS - 1 : 2);
    }
    ends(stream);
    /* The rows of one tensor, and all of the others. */
    options.rows = rows + 1;
    options.rows_count = 1;
    stream = streamed(layers, &options);
    for (int layer = 0; layer < LAYERS; layer++) {
        next_has_rows(stream, layer, layer == 2 ? 1 : 0, ROWS - (layer == 2));
    }
    ends(stream);
    /* No rows at all. */
    rows[0].start = rows[0].end = 4;
    options.rows = rows;
    stream = streamed(layers, &options);
    for (int layer = 0; layer < LAYERS; layer++) {
        next_has_rows(stream, layer, 4, 0);
    }
    ends(stream);
}

static void shares_cover_all_rows(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    longshore_rows share = LONGSHORE_ROWS_INIT;
    int first = 0, biases = 0;
    options.rows = &share;
    options.rows_count = 1;
    share.share_count = 5;
    for (; share.share_index < 5; share.share_index++) {
        longshore_stream *stream = streamed(layers, &options);
        int count = ROWS * ((int)share.share_index + 1) / 5 - first;
        for (int layer = 0; layer < LAYERS; layer++) {
            next_has_rows(stream, layer, first, count);
            longshore_streamed_tensor *bias = next(stream);
            biases += (int)longshore_tensor_len(longshore_streamed_tensor_view(bias));
            longshore_streamed_tensor_free(bias);
        }
        longshore_streamed_tensor *scale = next(stream);
        is_of_layers(scale);
        longshore_streamed_tensor_free(scale);
        ends(stream);
        first += count;
    }
    CHECK(first == ROWS && biases == 8 * LAYERS);
}

/* Stores the SHA-256 of layers, as a load computes it. */
static void checksum_of_layers(char *hex) {
    longshore_load_options options = LONGSHORE_LOAD_OPTIONS_INIT;
    options.verify = LONGSHORE_VERIFY_SHA256;
    longshore_buffer *buffer = loaded(layers, &options);
    const longshore_file *file = longshore_buffer_file(buffer, 0);
    strcpy(hex, longshore_file_digest(file, LONGSHORE_VERIFY_SHA256));
    longshore_buffer_free(buffer);
}

static void checksums(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.verify = LONGSHORE_VERIFY_SHA256 | LONGSHORE_VERIFY_CRC32C;
    options.memory_bytes = MEMORY_OF_ONE;
    char expected[65];
    checksum_of_layers(expected);
    longshore_stream *stream = streamed(layers, &options);
    longshore_streamed_tensor *tensor = next(stream);
    const longshore_file *file = longshore_stream_file(stream, 0);
    CHECK(longshore_file_digest(file, LONGSHORE_VERIFY_SHA256) == NULL);
    for (; tensor != NULL; tensor = next(stream)) {
        is_of_layers(tensor);
        longshore_streamed_tensor_free(tensor);
    }
    CHECK(longshore_stream_file(stream, 0) == file);
    CHECK(longshore_file_digest(file, LONGSHORE_VERIFY_SHA256) != NULL);
    CHECK(strcmp(longshore_file_digest(file, LONGSHORE_VERIFY_SHA256), expected) == 0);
    CHECK(strlen(longshore_file_digest(file, LONGSHORE_VERIFY_CRC32C)) == 8);
    CHECK(longshore_file_digest(file, LONGSHORE_VERIFY_XXH3) == NULL);
    ends(stream);
}

static void a_manifest_is_compared_before_the_last_tensor(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    char line[2 * PATH_BYTES], path[PATH_BYTES], hex[65];
    in_folder(path, "SHA256SUMS");
    checksum_of_layers(hex);
    options.manifest = path;
    for (int is_right = 1; is_right >= 0; is_right--) {
        hex[0] = is_right ? hex[0] : hex[0] == '0' ? '1' : '0';
        snprintf(line, sizeof line, "%s  %s\n", hex, layers);
        CHECK(write_bytes(path, line, strlen(line)));
        longshore_stream *stream = streamed(layers, &options);
        /* The last two tensors are read together. */
        for (int left = LAYERS_TENSORS - (is_right ? 0 : 2); left > 0; left--) {
            longshore_streamed_tensor *tensor = next(stream);
            is_of_layers(tensor);
            longshore_streamed_tensor_free(tensor);
        }
        if (is_right) {
            ends(stream);
        } else {
            next_fails(stream, LONGSHORE_MISMATCH, EBADMSG, "sha256 is ");
            next_fails(stream, LONGSHORE_STREAM_FAILED, EIO, "failed before");
            longshore_stream_free(stream);
        }
    }
}

const struct test stream_tests[] = {
    TEST(a_stream_yields_the_tensors_of_the_file),
    TEST(modes_and_formats),
    TEST(direct_reads_of_a_stream),
    TEST(selection_of_names_and_patterns),
    TEST(selection_of_files),
    TEST(selection_of_rows),
    TEST(shares_cover_all_rows),
    TEST(checksums),
    TEST(a_manifest_is_compared_before_the_last_tensor),
    {NULL, NULL},
};

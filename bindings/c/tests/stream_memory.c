/* Tests of the memory of streams, and of threads that share one. */
#include "streams.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "models.h"

/* Selects the large tensors. */
static const char *const weights[] = {"*.weight"};

static longshore_stream_options of_weights(int memory_bytes) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.patterns = weights;
    options.pattern_count = LEN(weights);
    options.memory_bytes = (uint64_t)memory_bytes;
    return options;
}

static void memory_is_used_again(void) {
    longshore_stream_options options = of_weights(MEMORY_OF_ONE);
    longshore_stream *stream = streamed(layers, &options);
    uintptr_t lowest = UINTPTR_MAX, highest = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        longshore_streamed_tensor *tensor = next(stream);
        uintptr_t address = (uintptr_t)data_of(tensor);
        CHECK(longshore_streamed_tensor_data_mut(tensor) == data_of(tensor));
        lowest = address < lowest ? address : lowest;
        highest = address > highest ? address : highest;
        is_of_layers(tensor);
        longshore_streamed_tensor_free(tensor);
    }
    CHECK(highest - lowest + LAYER_BYTES <= MEMORY_OF_ONE);
    CHECK(report_of(stream).memory_bytes <= MEMORY_OF_ONE && report_of(stream).grown_bytes == 0);
    ends(stream);
}

static void full_memory_is_an_error_and_the_stream_goes_on(void) {
    longshore_stream_options options = of_weights(MEMORY_OF_TWO);
    options.wait_ms = LONGSHORE_NO_WAIT;
    longshore_stream *stream = streamed(layers, &options);
    longshore_streamed_tensor *before = next(stream), *held = next(stream);
    for (int layer = 2; layer < LAYERS; layer++) {
        char oldest[32];
        snprintf(oldest, sizeof oldest, "layers.%d.weight", layer - 2);
        next_fails(stream, LONGSHORE_STREAM_FULL, EAGAIN, oldest);
        next_fails(stream, LONGSHORE_STREAM_FULL, EAGAIN, "drop tensors");
        is_of_layers(before);
        is_of_layers(held);
        longshore_streamed_tensor_free(before);
        before = held;
        held = next(stream);
        is_of_layers(held);
    }
    CHECK(next(stream) == NULL && report_of(stream).yielded_tensors == LAYERS);
    /* None of the failures waited for the default of 10 seconds. */
    CHECK(report_of(stream).elapsed_ns < 50000000000);
    longshore_streamed_tensor_free(before);
    longshore_streamed_tensor_free(held);
    ends(stream);
}

static void the_wait_ends_after_its_time(void) {
    longshore_stream_options options = of_weights(MEMORY_OF_ONE);
    options.wait_ms = 1100;
    longshore_stream *stream = streamed(layers, &options);
    longshore_streamed_tensor *held = next(stream);
    next_fails(stream, LONGSHORE_STREAM_FULL, EAGAIN, "no tensor was dropped for 1.");
    CHECK(report_of(stream).elapsed_ns >= 1100000000);
    longshore_streamed_tensor_free(held);
    longshore_stream_free(stream);
}

static void *free_late(void *tensor) {
    usleep(100 * 1000);
    longshore_streamed_tensor_free((longshore_streamed_tensor *)tensor);
    return NULL;
}

static void a_call_waits_for_another_thread(void) {
    longshore_stream_options options = of_weights(MEMORY_OF_ONE);
    longshore_stream *stream = streamed(layers, &options);
    longshore_streamed_tensor *tensor = next(stream);
    for (int layer = 1; layer < LAYERS; layer++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, free_late, tensor) == 0);
        tensor = next(stream);
        is_of_layers(tensor);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    longshore_streamed_tensor_free(tensor);
    ends(stream);
}

static void a_stream_that_grows_is_never_full(void) {
    longshore_stream_options options = of_weights(MEMORY_OF_TWO);
    options.flags = LONGSHORE_STREAM_GROW;
    longshore_stream *stream = streamed(layers, &options);
    longshore_streamed_tensor *held[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        held[layer] = next(stream);
    }
    longshore_stream_report report = report_of(stream);
    CHECK(report.grown_bytes >= (LAYERS - 2) * (uint64_t)LAYER_BYTES);
    CHECK(report.memory_bytes <= MEMORY_OF_TWO);
    for (int layer = 0; layer < LAYERS; layer++) {
        is_of_layers(held[layer]);
        longshore_streamed_tensor_free(held[layer]);
    }
    ends(stream);
}

static void tensors_come_as_they_are_complete(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.flags = LONGSHORE_STREAM_BY_COMPLETION;
    options.memory_bytes = MEMORY_OF_TWO;
    longshore_stream *stream = streamed(layers, &options);
    int seen[LAYERS + 1][2];
    memset(seen, 0, sizeof seen);
    for (int left = LAYERS_TENSORS; left > 0; left--) {
        longshore_streamed_tensor *tensor = next(stream);
        int layer = LAYERS;
        is_of_layers(tensor);
        sscanf(name_of(tensor), "layers.%d", &layer);
        CHECK(seen[layer][strstr(name_of(tensor), "bias") != NULL]++ == 0);
        longshore_streamed_tensor_free(tensor);
    }
    ends(stream);
}

static void *consume(void *shared) {
    longshore_stream *stream = (longshore_stream *)shared;
    uintptr_t count = 0;
    longshore_streamed_tensor *tensor;
    while ((tensor = next(stream)) != NULL) {
        is_of_layers(tensor);
        CHECK(report_of(stream).yielded_tensors > 0);
        longshore_streamed_tensor_free(tensor);
        count++;
    }
    return (void *)count;
}

static void threads_share_a_stream(void) {
    longshore_stream_options options = LONGSHORE_STREAM_OPTIONS_INIT;
    options.memory_bytes = MEMORY_OF_TWO;
    for (int round = 0; round < 3; round++) {
        options.flags = round == 1 ? LONGSHORE_STREAM_BY_COMPLETION : 0;
        longshore_stream *stream = streamed(layers, &options);
        pthread_t all[4];
        uintptr_t sum = 0;
        for (size_t at = 0; at < LEN(all); at++) {
            CHECK(pthread_create(&all[at], NULL, consume, stream) == 0);
        }
        for (size_t at = 0; at < LEN(all); at++) {
            void *count = NULL;
            CHECK(pthread_join(all[at], &count) == 0);
            sum += (uintptr_t)count;
        }
        CHECK(sum == LAYERS_TENSORS);
        ends(stream);
    }
}

/* Frees a stream after some of its tensors, while it reads the others. */
static void a_stream_can_be_freed_at_any_time(void) {
    for (int round = 0; round < 4; round++) {
        for (int count = 0; count <= 2; count++) {
            longshore_stream_options options = of_weights(round % 2 ? (int)MEMORY_OF_TWO : 0);
            options.flags = round / 2 ? LONGSHORE_STREAM_NO_URING : 0;
            longshore_stream *stream = streamed(layers, &options);
            longshore_streamed_tensor *held[2] = {NULL, NULL};
            for (int at = 0; at < count; at++) {
                held[at] = next(stream);
            }
            longshore_stream_free(stream);
            for (int at = 0; at < count; at++) {
                is_of_layers(held[at]);
                memset(longshore_streamed_tensor_data_mut(held[at]), at, LAYER_BYTES);
                longshore_streamed_tensor_free(held[at]);
            }
        }
    }
}

static void *cancel_late(void *stream) {
    usleep(100 * 1000);
    longshore_stream_cancel((longshore_stream *)stream);
    return NULL;
}

static void another_thread_cancels_a_call(void) {
    longshore_stream_options options = of_weights(MEMORY_OF_TWO);
    options.wait_ms = 60 * 1000;
    longshore_stream *stream = streamed(layers, &options);
    longshore_streamed_tensor *first = next(stream), *second = next(stream);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, cancel_late, stream) == 0);
    next_fails(stream, LONGSHORE_CANCELLED, ECANCELED, "cancelled after ");
    CHECK(pthread_join(thread, NULL) == 0);
    next_fails(stream, LONGSHORE_CANCELLED, ECANCELED, "cancelled after ");
    is_of_layers(first);
    longshore_streamed_tensor_free(first);
    next_fails(stream, LONGSHORE_CANCELLED, ECANCELED, "cancelled after ");
    longshore_stream_free(stream);
    is_of_layers(second);
    longshore_streamed_tensor_free(second);
}

struct waited {
    int calls, stop_at;
    pthread_t thread;
};

static int wait_on(void *data) {
    struct waited *waited = (struct waited *)data;
    waited->thread = pthread_self();
    return ++waited->calls == waited->stop_at;
}

static void the_callback_stops_a_call_but_not_the_stream(void) {
    struct waited waited;
    memset(&waited, 0, sizeof waited);
    longshore_stream_options options = of_weights(MEMORY_OF_ONE);
    options.wait_ms = 60 * 1000;
    options.waiting = wait_on;
    options.waiting_data = &waited;
    longshore_stream *stream = streamed(layers, &options);
    longshore_streamed_tensor *tensor = next(stream);
    for (int layer = 1; layer < LAYERS; layer++) {
        memset(&waited, 0, sizeof waited);
        waited.stop_at = 5;
        next_fails(stream, LONGSHORE_CANCELLED, ECANCELED, "cancelled after ");
        CHECK(waited.calls == 5 && pthread_equal(waited.thread, pthread_self()));
        waited.stop_at = 0;
        is_of_layers(tensor);
        longshore_streamed_tensor_free(tensor);
        tensor = next(stream);
        is_of_layers(tensor);
    }
    longshore_streamed_tensor_free(tensor);
    ends(stream);
}

const struct test stream_memory_tests[] = {
    TEST(memory_is_used_again),
    TEST(full_memory_is_an_error_and_the_stream_goes_on),
    TEST(the_wait_ends_after_its_time),
    TEST(a_call_waits_for_another_thread),
    TEST(a_stream_that_grows_is_never_full),
    TEST(tensors_come_as_they_are_complete),
    TEST(threads_share_a_stream),
    TEST(a_stream_can_be_freed_at_any_time),
    TEST(another_thread_cancels_a_call),
    TEST(the_callback_stops_a_call_but_not_the_stream),
    {NULL, NULL},
};

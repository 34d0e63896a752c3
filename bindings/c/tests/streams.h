/* Functions for the tests of streams. */
#ifndef STREAMS_H
#define STREAMS_H

#include "api.h"

/* The memory for one and for two of the tensors of write_layers that have 1 MiB or more. */
enum { MEMORY_OF_ONE = 2 << 20, MEMORY_OF_TWO = 3 << 20, LAYERS_TENSORS = 11 };

/* Opens a stream of one file and checks that this succeeds. */
longshore_stream *streamed(const char *path, const longshore_stream_options *options);

/* Returns the next tensor, or NULL after the last, and checks that this succeeds. */
longshore_streamed_tensor *next(longshore_stream *stream);

/* Checks that there is no next tensor, and frees the stream. */
void ends(longshore_stream *stream);

/* Checks that the next call fails with this code, errno and part of a message. */
void next_fails(longshore_stream *stream, longshore_code expected, int expected_errno,
                const char *said);

longshore_stream_report report_of(const longshore_stream *stream);

const char *name_of(const longshore_streamed_tensor *tensor);
const void *data_of(const longshore_streamed_tensor *tensor);

/* Checks that the name, shape and data are those of a whole tensor of write_layers. */
void is_of_layers(const longshore_streamed_tensor *tensor);

#endif

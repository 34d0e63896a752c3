/*
 * Shows what is in a GGUF model, by a reader that takes a path and uses stdio, as llama.cpp does.
 *
 *   gguf MODEL               the reader reads the disk
 *   gguf --longshore MODEL   Longshore loads the model, and the reader reads the memory
 *
 * The reader, gguf_reader.c, is the same and knows nothing of it: it is given another path.
 */
#include <longshore.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_reader.h"

static int read_through_longshore(const char *model) {
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    if (longshore_load(&model, 1, NULL, &buffer, &error) != LONGSHORE_OK) {
        fprintf(stderr, "error: %s\n", longshore_error_message(error));
        longshore_error_free(error);
        return EXIT_FAILURE;
    }
    int status = gguf_print(longshore_buffer_path(buffer), stdout);
    longshore_buffer_free(buffer);
    return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--longshore") == 0) {
        return read_through_longshore(argv[2]);
    }
    if (argc == 2 && argv[1][0] != '-') {
        return gguf_print(argv[1], stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    fprintf(stderr, "usage: %s [--longshore] MODEL\n", argv[0]);
    return 2;
}

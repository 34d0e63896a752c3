/*
 * Shows what is in a GGUF model, by a reader that takes a FILE and uses stdio, as llama.cpp does.
 *
 *   gguf MODEL               the reader reads the disk
 *   gguf --longshore MODEL   Longshore loads the model, and the reader reads the memory
 *
 * The reader, gguf_reader.c, is the same and knows nothing of it: it is given another FILE. One that
 * takes a path is given longshore_buffer_path(buffer).
 */
#include <longshore.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf_reader.h"

/* A FILE of the memory that a model was loaded into, or NULL with the reason on stderr. */
static FILE *open_loaded(const char *model) {
    longshore_buffer *buffer = NULL;
    longshore_error *error = NULL;
    FILE *file = NULL;
    int fd = -1;
    if (longshore_load(&model, 1, NULL, &buffer, &error) != LONGSHORE_OK ||
        longshore_buffer_fd_open(buffer, &fd, &error) != LONGSHORE_OK) {
        fprintf(stderr, "error: %s\n", longshore_error_message(error));
        longshore_error_free(error);
    } else if ((file = fdopen(fd, "rb")) == NULL) {
        perror(model);
        close(fd);
    }
    /* What is open keeps the memory. */
    longshore_buffer_free(buffer);
    return file;
}

static FILE *open_disk(const char *model) {
    FILE *file = fopen(model, "rb");
    if (file == NULL) {
        perror(model);
    }
    return file;
}

int main(int argc, char **argv) {
    int by_longshore = argc == 3 && strcmp(argv[1], "--longshore") == 0;
    if (!by_longshore && (argc != 2 || argv[1][0] == '-')) {
        fprintf(stderr, "usage: %s [--longshore] MODEL\n", argv[0]);
        return 2;
    }
    const char *model = argv[argc - 1];
    FILE *file = by_longshore ? open_loaded(model) : open_disk(model);
    int status = file == NULL ? -1 : gguf_print(file, model, stdout);
    if (file != NULL) {
        fclose(file);
    }
    return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
